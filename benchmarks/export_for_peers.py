"""Write a model for the engines that don't read GGUF: ONNX Runtime GenAI and CTranslate2.

    pip install hotloop[bench] transformers accelerate torch onnx onnx-ir
    python benchmarks/export_for_peers.py MODEL.gguf

transformers reads the file and gives back its weights in 16 bits, in Hugging Face's layout; from
that, each engine's own converter makes what it is fastest with: MODEL.onnx/ (4 bits, blocks of 32)
and MODEL.ct2/ (8 bits). They round once more, so their tokens are not those of the file.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path


def exported(model: str, kind: str) -> Path:
    """The folder of `model`, a GGUF file, for the engine that wants `kind`: onnx or ct2."""
    folder = Path(model).with_suffix(f".{kind}")
    if not folder.is_dir():
        raise FileNotFoundError(f"no {folder.name}; write it with benchmarks/export_for_peers.py")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a GGUF model for other engines.")
    parser.add_argument("model", type=Path)
    model: Path = parser.parse_args().model
    with tempfile.TemporaryDirectory(dir=model.parent) as folder:
        _write_huggingface(model, Path(folder))
        convert = [sys.executable, "-m"]
        onnx = [*convert, "onnxruntime_genai.models.builder", "-m", folder, "-p", "int4", "-e"]
        onnx += ["cpu", "-o", str(model.with_suffix(".onnx")), "-c", f"{folder}/cache"]
        subprocess.run([*onnx, "--extra_options", "hf_token=false"], check=True)
        ct2 = [*convert, "ctranslate2.converters.transformers", "--model", folder, "--force"]
        ct2 += ["--quantization", "int8", "--output_dir", str(model.with_suffix(".ct2"))]
        subprocess.run(ct2, check=True)


def _write_huggingface(model: Path, folder: Path) -> None:
    """float16 safetensors, config and tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": model.parent, "gguf_file": model.name}
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
    read = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float16)
    # What was read from GGUF counts as quantised and cannot be saved; a fresh model can.
    settings = read.config.to_dict()
    settings.pop("quantization_config", None)
    plain = type(read)(type(read.config)(**settings)).to(torch.float16)
    plain.load_state_dict(read.state_dict())
    plain.save_pretrained(folder)


if __name__ == "__main__":
    main()
