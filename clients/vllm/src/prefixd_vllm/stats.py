"""Counters of the connector in the form that vLLM's own statistics take: plain numbers that add up."""

from __future__ import annotations

from typing import Any, Dict, Union

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats

__all__ = ["PrefixdStats"]


class PrefixdStats(KVConnectorStats):
    """`data`: blocks_loaded, blocks_not_loaded, blocks_saved, saves_dropped, loads, loads_failed ..."""

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for key, value in other.data.items():
            self.data[key] = self.data.get(key, 0) + value
        return self

    def reduce(self) -> Dict[str, Union[int, float]]:
        return dict(self.data)

    def is_empty(self) -> bool:
        return not any(self.data.values())

    @classmethod
    def of(cls, counts: Dict[str, Any]) -> PrefixdStats:
        return cls(data=dict(counts))
