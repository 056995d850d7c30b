"""Text: token ids, padded with 0 to one length."""
