"""Token ids as samples, and token dropout."""

import pytest
import torch

from fedchoir.data.text.text_set import DROPOUT, TextSet, drop_tokens
from fedchoir.data.text.tokenizers import HashTokenizer
from fedchoir.utils.errors import UsageError

TOKENS = torch.arange(1, 101).repeat(300, 1)


@pytest.mark.parametrize("kind", DROPOUT)
def test_dropout_removes_a_share_of_the_tokens_and_keeps_their_order(kind: str) -> None:
    samples = TextSet(TOKENS, torch.zeros(300, dtype=torch.int64), HashTokenizer(200))
    dropped = samples.augment(TOKENS, kind, torch.Generator().manual_seed(0))
    lengths = (dropped > 0).sum(dim=1).double()
    assert abs(1 - lengths.mean().item() / 100 - DROPOUT[kind]) < 0.02
    for row, length in zip(dropped[:20], lengths[:20].long(), strict=True):
        kept = row[:length]
        assert (kept[1:] > kept[:-1]).all()  # a subsequence, moved to the front
        assert not row[length:].any()
    assert len({tuple(row.tolist()) for row in dropped}) == 300
    assert torch.equal(dropped, samples.augment(TOKENS, kind, torch.Generator().manual_seed(0)))


def test_a_text_keeps_its_first_token_and_padding_stays() -> None:
    tokens = torch.tensor([[7, 0, 0], [0, 0, 0]])
    assert drop_tokens(tokens, 0.999, torch.Generator()).tolist() == [[7, 0, 0], [0, 0, 0]]


def test_what_a_model_receives() -> None:
    samples = TextSet(TOKENS, torch.zeros(300, dtype=torch.int64), HashTokenizer(200))
    assert (samples.input_spec.shape, samples.input_spec.vocabulary) == ((100,), 200)
    assert torch.equal(samples.transform(TOKENS), TOKENS)
    assert samples.transform.to_json()["tokenizer"] == {"kind": "hash", "vocabulary": 200}
    with pytest.raises(UsageError, match="'jitter' is not possible for text samples"):
        samples.augment(TOKENS, "jitter", torch.Generator())
    with pytest.raises(ValueError, match="int64 N×length"):
        TextSet(TOKENS.float(), torch.zeros(300, dtype=torch.int64))
