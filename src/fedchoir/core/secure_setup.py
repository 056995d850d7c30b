"""Sets up secure aggregation for a run, or refuses it with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedchoir.core.eligibility import Secure, check_secure
from fedchoir.core.interfaces import Engine, FederatedMethod, SecureEngine
from fedchoir.utils.errors import UsageError

if TYPE_CHECKING:
    from fedchoir.core.secure_exchange import SecureExchange


def secure_exchange(
    method: FederatedMethod, engine: Engine, secure: Secure, quorum: float, folder: Path | None
) -> SecureExchange:
    """Exchanges whose payloads only become visible as a mean. They need the extra ``privacy``."""
    clients = method.spec.clients
    check_secure(type(method), method.params, len(clients), method.spec.compress)
    if why := method.models_prevent_sums():
        raise UsageError(f"secure = true is not possible with {method.name} and these models: {why}")
    try:
        from fedchoir.core.secure_exchange import SecureExchange
        from fedchoir.privacy.secure_aggregation.store import FolderStore
    except ModuleNotFoundError:
        raise UsageError("secure aggregation needs the package cryptography: pip install 'fedchoir[privacy]'") from None
    if not isinstance(engine, SecureEngine):
        raise UsageError("secure aggregation is simulated in one process: give one device, or set secure to false")
    names = [info.name for info in clients]
    senders = FolderStore(folder / "sums") if folder else None
    return SecureExchange(engine, names, method.name, strict=secure == "strict", quorum=quorum, senders=senders)
