"""A worker that lets vLLM's offloading connector run where it otherwise refuses: on a CPU.

vLLM's tiering spec makes its K/V copies with CUDA or XPU streams and refuses any other platform.  This
spec is the same but for that: it copies between the K/V tensors and the rows of the host tier at once,
in the calling thread.  So the engine's scheduler, its connector, its tiering manager and the shared host
region are the real ones.  A test's tool, loaded by module path; no product of its own.
"""

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class CopyWorker(OffloadingWorker):
    def __init__(self, kv_caches, blocks_per_chunk, region):
        self.per_chunk = blocks_per_chunk
        self.region = region
        self.refs = kv_caches.group_data_refs
        self.kv, self.rows = [], []
        for tensor in kv_caches.tensors:
            self.kv.append(tensor.tensor.view(torch.int8).view(-1, tensor.page_size_bytes))
            self.rows.append(region.create_next_worker_view(tensor.page_size_bytes * blocks_per_chunk))
        self.done = []

    def submit_store(self, job_id, src_spec, dst_spec):
        return self.copy(job_id, src_spec, dst_spec.chunk_ids, to_rows=True)

    def submit_load(self, job_id, src_spec, dst_spec):
        return self.copy(job_id, dst_spec, src_spec.chunk_ids, to_rows=False)

    def copy(self, job_id, blocks, chunks, to_rows):
        block_at = chunk_at = 0
        for refs, size, index in zip(self.refs, blocks.group_sizes, blocks.block_indices):
            skip = index % self.per_chunk
            for i in range(size):
                block = int(blocks.block_ids[block_at + i])
                chunk = int(chunks[chunk_at + (skip + i) // self.per_chunk])
                place = (skip + i) % self.per_chunk
                for ref in refs:
                    kv = self.kv[ref.tensor_idx][block]
                    n = kv.numel()
                    row = self.rows[ref.tensor_idx][chunk, place * n : (place + 1) * n]
                    if to_rows:
                        row.copy_(kv)
                    else:
                        kv.copy_(row)
            block_at += size
            chunk_at += -(-(skip + size) // self.per_chunk) if size else 0
        self.done.append(TransferResult(job_id=job_id, success=True))
        return True

    def get_finished(self):
        done, self.done = self.done, []
        return done

    def wait(self, job_ids):
        pass

    def shutdown(self):
        self.kv, self.rows = [], []
        if self.region is not None:
            self.region.cleanup()
            self.region = None


class CpuRowsSpec(TieringOffloadingSpec):
    def get_worker(self, kv_caches):
        if not self._worker:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = CopyWorker(kv_caches, self.blocks_per_chunk, region)
        return self._worker
