"""What several methods compute with: mixtures, Gaussians, clusterings and embeddings."""

from . import clustering, embedding, gaussian, mixture

__all__ = ["clustering", "embedding", "gaussian", "mixture"]
