"""The Flower engine: the same methods between real sites. Flower's own types stay inside this package."""
