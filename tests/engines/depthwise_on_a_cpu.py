"""Run by `test_fused.py` in a process of its own with TRITON_INTERPRET=1: Triton must know before it is imported."""

from __future__ import annotations

import torch

from fedchoir.engines.depthwise import depthwise


def main() -> None:
    for channels, size, stride, side in ((70, 3, 1, 6), (33, 3, 2, 7), (16, 5, 1, 4), (8, 5, 2, 9)):
        torch.manual_seed(channels)
        x = torch.randn(3, channels, side, side, requires_grad=True)
        w = torch.randn(channels, 1, size, size, requires_grad=True)
        y = depthwise(x, w, stride, size // 2)
        expected = torch.nn.functional.conv2d(x, w, None, stride, size // 2, 1, channels)
        dy = torch.randn_like(expected)
        found, wanted = (torch.autograd.grad(out, (x, w), dy) for out in (y, expected))
        for mine, theirs in ((y, expected), *zip(found, wanted, strict=True)):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
        print("same", channels, size, stride, side)


if __name__ == "__main__":
    main()
