"""Whether exact match on GSM8K can measure the tuning of `alpaca`: the untuned model's answers.

Greedy answers of at most 160 tokens to the first 16 test questions, of which the last number
counts. GSM8K's own file is test.jsonl, of https://github.com/openai/grade-school-math.

python results/gsm8k.py test.jsonl > results/alpaca/gsm8k.json
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import torch

from infobatch_lab.language import from_gguf, transformers
from infobatch_lab.tables import read_rows
from infobatch_lab.weights import SMOLLM2, path_of

NUM_QUESTIONS, NUM_TOKENS, BATCH = 16, 160, 8


def last_number(text: str) -> str:
    """The last number of a text, without commas; nothing where there is none.

    >>> last_number("He pays 3 x 4 = $1,200.")
    '1200'
    """
    numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
    return numbers[-1].replace(",", "") if numbers else ""


@torch.inference_mode()
def answers(questions: list[str], weights: Path) -> list[str]:
    """What the model says, in the form in which it has learned to answer."""
    package = transformers()
    tokenizer = package.AutoTokenizer.from_pretrained(weights, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    network = package.AutoModelForCausalLM.from_pretrained(weights).eval()
    prompts = [f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n" for q in questions]
    found = []
    for start in range(0, len(prompts), BATCH):
        batch = tokenizer(prompts[start : start + BATCH], return_tensors="pt", padding=True)
        made = network.generate(
            **batch,
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        )
        rest = made[:, batch["input_ids"].shape[1] :]
        found += tokenizer.batch_decode(rest, skip_special_tokens=True)
    return found


def main() -> None:
    rows = read_rows(Path(sys.argv[1]))[:NUM_QUESTIONS]
    said = answers([str(row["question"]) for row in rows], from_gguf(path_of(SMOLLM2)))
    found = []
    for row, answer in zip(rows, said, strict=True):
        wanted = last_number(str(row["answer"]).split("####")[-1])
        record = {"question": row["question"], "answer": answer, "wanted": wanted}
        found.append({**record, "is_right": last_number(answer) == wanted})
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
