import pytest
import yaml

from dflash.config import RunConfig, Section, build_config, dump_config, known_keys, load_config
from dflash.errors import RefusedInput
from dflash.overrides import parse_override

LEAST = {"data": {"path": "data"}, "target": {"path": "qwen3-tiny"}}


def test_every_setting_has_a_line_of_doc():
    undocumented = [
        f"{name}.{key}"
        for name, section in RunConfig.model_fields.items()
        for key, field in section.annotation.model_fields.items()
        if not field.description
    ]
    assert undocumented == []


def test_a_config_written_out_reads_back_equal(tmp_path):
    config = build_config(LEAST, ["optim.lr=3e-4", "batching.boundaries=[0, 100, 8192]", "drafter.layers=2"])
    (tmp_path / "config.yaml").write_text(dump_config(config))
    assert load_config(tmp_path / "config.yaml") == config


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("optim.lr=3e-4", ("optim", "lr", 3e-4)),
        ("optim.lr=0.1", ("optim", "lr", 0.1)),
        ("batching.boundaries=[0,10]", ("batching", "boundaries", [0, 10])),
        ("drafter.compile=true", ("drafter", "compile", True)),
        ("batching.max_rows=null", ("batching", "max_rows", None)),
        ("pool.policy=random", ("pool", "policy", "random")),
    ],
)
def test_overrides_take_yaml_values(text, expected):
    assert parse_override(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kl", {"kl": 1.0}),
        ("{kl: 0.5, cross_entropy: 0.5}", {"kl": 0.5, "cross_entropy": 0.5}),
        ("{cross_entropy: 1e-1, total_variation: 1}", {"cross_entropy": 0.1, "total_variation": 1.0}),
    ],
)
def test_a_loss_is_a_name_or_a_mix(text, expected):
    assert build_config(LEAST, [f"drafter.loss={text}"]).drafter.loss == expected


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optim.lrr=1", r"unknown key optim.lrr; did you mean optim.lr\?"),
        ("optimm.lr=1", r"unknown key optimm"),
        ("optim.lr=-1", r"optim.lr: .*greater than 0 \(given: -1\)"),
        ("optim.lr=fast", r"optim.lr: .*\(given: 'fast'\)"),
        ("batching.boundaries=[0, 20, 10]", r"batching.boundaries: .*10 after 20 is not ascending"),
        ("batching.boundaries=[0, 10, 10]", r"batching.boundaries: .*10 after 10 is given twice"),
        ("batching.boundaries=[5, 10]", r"batching.boundaries: .*the first 0"),
        ("batching.strategy=clever", r"batching.strategy: .*'sorted'"),
        ("pool.policy=round_robin_wait", r"can deadlock: set pool.wait_seconds"),
        ("drafter.layer_types=[full_attention]", r"layer_types has 1 entries for layers=5"),
        ("drafter.loss=kll", r"drafter.loss: there is no 'kll', did you mean kl\? \(cross_entropy, dpace, kl, "),
        ("drafter.loss={kl: -1}", r"drafter.loss: the weight of kl is -1; a number of 0 or more"),
        ("drafter.loss={kl: .nan}", r"drafter.loss: the weight of kl is nan"),
        ("drafter.loss={kl: true}", r"drafter.loss: the weight of kl is True"),
        ("drafter.loss={kl: 0, dpace: 0}", r"drafter.loss: no weight is above 0"),
        ("drafter.loss=[kl]", r"drafter.loss: \['kl'\] is neither a name nor a mapping"),
        ("nonsense", r"expected section.key=value"),
        ("optim.lr=[", r"not YAML"),
    ],
)
def test_a_bad_setting_is_named_with_its_key(override, message):
    with pytest.raises(RefusedInput, match=message):
        build_config(LEAST, [override])


def test_a_missing_key_and_a_bad_file_are_named(tmp_path):
    with pytest.raises(RefusedInput, match=r"data is missing"):
        build_config({"target": {"path": "x"}})
    for name, text in (("list.yaml", "- 1"), ("broken.yaml", "a: [")):
        (tmp_path / name).write_text(text)
        with pytest.raises(RefusedInput, match=name):
            load_config(tmp_path / name)
    with pytest.raises(RefusedInput, match=r"absent.yaml: can't be read"):
        load_config(tmp_path / "absent.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RefusedInput, match="not YAML"):
        load_config(tmp_path / "bytes.yaml")


def test_known_keys_are_those_of_the_written_config():
    tree = yaml.safe_load(dump_config(build_config(LEAST)))
    assert known_keys() == [f"{section}.{key}" for section, values in tree.items() for key in values]
    assert issubclass(RunConfig.model_fields["optim"].annotation, Section)
