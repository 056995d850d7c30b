"""Learning without labels: objectives over two views, FedFoA's correlations, and how such an encoder is judged."""
