"""Images: reading, data sets, augmentation and colour transforms."""
