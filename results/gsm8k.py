"""Whether exact match on GSM8K can measure the tuning of `alpaca`: the untuned model's answers.

Greedy answers of at most 400 tokens to the first 128 test questions, of which the last number
counts. GSM8K's own file is test.jsonl, of https://github.com/openai/grade-school-math; a table with
the columns `split`, `question` and `answer` will do too.

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

NUM_QUESTIONS, NUM_TOKENS, BATCH = 128, 400, 16


def last_number(text: str) -> float | None:
    """The last number of a text; None where there is none.

    >>> last_number("He pays 3 x 4 = $1,200.00."), last_number("10-4"), last_number("none")
    (1200.0, 4.0, None)
    """
    numbers = re.findall(r"(?<!\d)-?\d[\d,]*(?:\.\d+)?", text)
    return float(numbers[-1].replace(",", "")) if numbers else None


@torch.inference_mode()
def answers(questions: list[str], weights: Path) -> list[tuple[str, bool]]:
    """What the model says, in the form that it has learned, and whether that came to an end."""
    package = transformers()
    tokenizer = package.AutoTokenizer.from_pretrained(weights, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    network = package.AutoModelForCausalLM.from_pretrained(weights).eval()
    prompts = [f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n" for q in questions]
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    found: list[tuple[str, bool]] = []
    for start in range(0, len(prompts), BATCH):
        batch = tokenizer(prompts[start : start + BATCH], return_tensors="pt", padding=True)
        made = network.generate(
            **batch,
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=end,
        )
        rest = made[:, batch["input_ids"].shape[1] :]
        texts = tokenizer.batch_decode(rest, skip_special_tokens=True)
        found += zip(texts, (rest == end).any(1).tolist(), strict=True)
    return found


def main() -> None:
    rows = [row for row in read_rows(Path(sys.argv[1])) if row.get("split", "test") == "test"]
    rows = rows[:NUM_QUESTIONS]
    said = answers([str(row["question"]) for row in rows], from_gguf(path_of(SMOLLM2)))
    found = []
    for row, (answer, is_finished) in zip(rows, said, strict=True):
        wanted = last_number(str(row["answer"]).split("####")[-1])
        record = {"question": row["question"], "answer": answer, "is_finished": is_finished}
        is_right = last_number(answer) == wanted
        found.append({**record, "wanted": wanted, "is_right": is_right})
    print(json.dumps(found, indent=1))
    counts = [sum(bool(record[name]) for record in found) for name in ("is_right", "is_finished")]
    print(f"{counts[0]} right, {counts[1]} finished, of {len(found)}", file=sys.stderr)


if __name__ == "__main__":
    main()
