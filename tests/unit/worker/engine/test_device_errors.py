"""Which errors are the device's, by the texts of MLX."""

from __future__ import annotations

import pytest

from worker.engine.ports import is_device_error

OF_THE_DEVICE = (
    "[METAL] Command buffer execution failed: Insufficient Memory (00000008:kIOGPU…OutOfMemory).",
    "[METAL] Command buffer execution failed: Caused GPU Timeout Error (00000002:…Timeout).",
    "[malloc] Unable to allocate 1073741824 bytes.",
    "[metal::malloc] Resource limit (499000) exceeded.",
    "[metal::malloc] Attempting to allocate 487 bytes which is greater than the maximum allowed",
    "cudaMallocManaged(&data, size) failed: out of memory",
    "cudaMallocManaged failed: an illegal memory access was encountered.",
    "cuLaunchKernel( kernel,\n num_blocks) failed: unspecified launch failure",
    "cublasLtMatmul(handle, desc) failed with code: 13.",
    "cudnnBackendExecute(handle, plan) failed: CUDNN_STATUS_EXECUTION_FAILED.",
)
OF_OTHERS = (
    "[matmul] Last dimension of first input with shape (1,2) must match second to last dimension",
    "[broadcast_shapes] Shapes (1,2) and (3) cannot be broadcast.",
    "There is no Stream(gpu, 1) in current thread.",
    "custom rule failed: no such token",
    "nvrtcCompileProgram(prog) failed: NVRTC_ERROR_COMPILATION",
    "currency failed: not a number",
    "",
)


@pytest.mark.parametrize("text", OF_THE_DEVICE)
def test_texts_of_the_device(text: str) -> None:
    assert is_device_error(RuntimeError(text))
    assert not is_device_error(ValueError(text)), "MLX raises RuntimeError"


@pytest.mark.parametrize("text", OF_OTHERS)
def test_texts_of_defects_and_requests(text: str) -> None:
    assert not is_device_error(RuntimeError(text))


def test_memory_of_the_host() -> None:
    assert is_device_error(MemoryError())
