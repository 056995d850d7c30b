"""Images: domains, scenarios and public sets by name, partitions, augmentation on the device."""
