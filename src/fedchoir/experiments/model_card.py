"""The text of a model card: what a model was trained on, by which method, how good it is, and how to use it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_USE = {
    "torch": """```python
model.load_state_dict(torch.load("{file}", weights_only=True))
```
The file holds the weights alone. Apply the preprocessing below before the model.""",
    "safetensors": """```python
model.load_state_dict(safetensors.torch.load_file("{file}"))
```
The file holds the weights alone. Apply the preprocessing below before the model.""",
    "onnx": """```python
session = onnxruntime.InferenceSession("{file}")
(probabilities,) = session.run(None, {{"samples": samples}})
```
The preprocessing is inside. {samples}""",
    "torch-export": """```python
probabilities = torch.export.load("{file}").module()(samples)
```
The preprocessing is inside. {samples}""",
}

METRICS_OF = {
    True: "the client's best round",
    False: "the mean of the last three evaluated rounds, or of all if there are fewer",
}
"""What the metrics of a card are, with and without ``--best``."""

_SAMPLES = {
    "table": "Columns are in the order of the list below. A category is its position in its list, from 0; a missing "
    "value is NaN.",
    "image": "Images are RGB with values from 0 to 255, already in this size.",
    "text": "Texts are token ids; 0 is padding.",
}


def card_text(facts: Mapping[str, Any]) -> str:
    """The card as Markdown."""
    which = "the client's best round by its validation samples" if facts["best_round"] else "the last round"
    shape = "×".join(map(str, facts["inputs"]["shape"]))
    lines = [
        f"# {facts['client']}: {facts['architecture']}",
        "",
        f"- Trained with **{facts['method']}** on `{facts['scenario']}`; seed {facts['seed']}, {_rounds(facts)}.",
        f"- The weights are those after round {facts['round']} ({which}).",
        f"- Training samples of this client: {facts['training_samples']}. Other clients' samples never reached it.",
        f"- {facts['parameters']:,} parameters; inputs: {facts['inputs']['modality']}, {shape} after preprocessing.",
        f"- Classes, in the order of the outputs: {', '.join(facts['classes'])}.",
        "",
        "## Metrics",
        "",
        *_table(facts["metrics"], facts["metrics_of"]),
        "",
        "## Use",
        "",
        _USE[facts["format"]].format(file=facts["file"], samples=_samples(facts["preprocessing"])),
        "",
        "## Preprocessing",
        "",
        "```json",
        json.dumps(facts["preprocessing"], indent=2),
        "```",
        "",
        "## Limits",
        "",
        "The metrics are those of the run's test sets and say nothing about other data. A model can reveal facts about "
        "its training samples: treat the file like the data it was trained on.",
        "",
    ]
    return "\n".join(lines)


def _rounds(facts: Mapping[str, Any]) -> str:
    done, planned = facts["rounds"], facts["planned_rounds"]
    if done is None:
        return f"{planned} rounds planned"
    return f"{done} rounds" if done >= planned else f"{done} rounds of {planned}: it stopped early"


def _samples(preprocessing: Mapping[str, Any]) -> str:
    """What the exported model takes."""
    stored = preprocessing["stored"]
    shape = "×".join(map(str, stored["shape"]))
    return f"`samples` is {stored['dtype']}, N×{shape}. {_SAMPLES.get(preprocessing['modality'], '')}".rstrip()


def _table(metrics: Mapping[str, Mapping[str, float]], of: str) -> list[str]:
    if not metrics:
        return ["The run has no result yet, or its sites did not report metrics."]
    tests = list(next(iter(metrics.values())))
    rows = [f"| metric | {' | '.join(tests)} |", f"|---|{'---|' * len(tests)}"]
    for name, values in metrics.items():
        cells = [f"{values[test]:.4g}" if values.get(test) is not None else "" for test in tests]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return [f"On the run's test sets: {of}.", "", *rows]
