"""Models for text, int64 token ids B×length; 0 is padding."""
