"""Data options name the field, its value and what would be right."""

from __future__ import annotations

import pytest

from fedchoir.data.scenario import DataOptions
from fedchoir.utils.errors import UsageError


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("image_size", 4, "image_size = 4 .* one number, or height and width, each from 8 to 512"),
        ("image_size", "32,600", "image_size = '32,600' .* each from 8 to 512"),
        ("image_size", (32, 32, 3), "image_size = .* height and width"),
        ("image_size", "large", "image_size = 'large' .* height and width"),
        ("aspect", "keep", "aspect = 'keep' .* 'squash', 'pad' or 'crop'"),
        ("grey_bits", 24, "grey_bits = 24 .* less than or equal to 16"),
        ("clients", 0, "clients = 0 .* greater than or equal to 1"),
        ("beta", 0.0, "beta = 0.0 .* greater than 0"),
        ("beta", float("nan"), "beta = nan"),
        ("label_noise", 1.0, "label_noise = 1.0 .* less than 1"),
        ("noise_type", "loud", "noise_type = 'loud' .* 'symmetric' or 'pair'"),
        ("partition", "random", "partition = 'random' .* 'dirichlet', 'shards', 'classes', 'iid' or 'file'"),
        ("partition", "file", "partition = 'file' .* set partition_file"),
        ("test_split", "none", "test_split = 'none' .* 'held-out', 'validation' or 'whole-folder'"),
        ("private", (0,), "private = .* counts from 1"),
        ("private", (1.5,), "private = .* shares up to 1.0"),
        ("private", (), "one number for all domains or one for each"),
        ("shards_per_client", 0, "shards_per_client = 0 .* greater than or equal to 1"),
        ("classes_per_client", 0, "classes_per_client = 0 .* greater than or equal to 1"),
        ("size_skew", -1, "size_skew = -1 .* greater than or equal to 0"),
        ("size_skew", float("nan"), "size_skew = nan"),
        ("rotate", "often", "rotate = 'often' .* a valid boolean"),
        ("join_late", "svhn", "join_late = 'svhn' .* NAME:ROUND with a round from 2, for example svhn:5"),
        ("join_late", "svhn:1", "join_late = 'svhn:1' .* a round from 2"),
        ("join_late", "svhn:2,svhn:3", "join_late = .* one round for each client"),
        ("join_late", 3, "join_late = 3 .* NAME:ROUND"),
        ("join_late", ["svhn", 3], "join_late = .* NAME:ROUND"),
    ],
)
def test_bad_options_name_field_value_and_what_is_right(field, value, wanted):
    with pytest.raises(UsageError, match=wanted) as caught:
        DataOptions(**{field: value})
    assert "\n" not in str(caught.value)


def test_late_clients_are_a_text_or_a_list():
    options = DataOptions(join_late="svhn:5, a:b:12")
    assert options == DataOptions(join_late=["svhn:5", "a:b:12"]) == DataOptions(**options.model_dump(mode="json"))
    assert options.late_rounds == {"svhn": 5, "a:b": 12}


def test_not_with_tests_that_hold_private_images():
    with pytest.raises(UsageError, match=r"^centralized = True is not possible with test_split = 'whole-folder'"):
        DataOptions(centralized=True, test_split="whole-folder")


@pytest.mark.parametrize(
    ("given", "kept"), [(64, 64), ("192,256", (192, 256)), ([192, 256], (192, 256)), ((48, 48), 48), ("48, 48", 48)]
)
def test_image_size_is_a_side_or_height_and_width(given, kept):
    assert DataOptions(image_size=given).image_size == kept
    dumped = DataOptions(image_size=given, cache="somewhere").model_dump(mode="json")
    assert "cache" not in dumped  # it does not belong to the result
    assert DataOptions(**dumped).image_size == kept
