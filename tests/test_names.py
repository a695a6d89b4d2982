"""Printed names to catalogue names: what is mapped, and that nothing is guessed."""

from __future__ import annotations

import pytest

from simulator.specs.hardware import Hardware
from simulator.validation import names
from simulator.validation.names import UnknownError


@pytest.mark.parametrize(("printed", "name"), [
    ("NVIDIA H100 SXM 80GB", "h100-sxm5-80gb"),
    ("NVIDIA H100-PCIe-80GB", "h100-pcie-80gb"),
    ("NVIDIA A100 80GB PCIe (PCIe stated)", "a100-pcie-80gb"),
    ("NVIDIA A100 SXM 40GB", "a100-sxm4-40gb"),
    ("  nvidia h200 sxm 141gb ", "h200-sxm-141gb"),
    ("AMD Instinct MI300X 192GB", "mi300x"),
    ("Apple M1 7-Core GPU 8GB", "apple-m1-7core"),
    ("Apple M2 Max 30-core GPU (400 GB/s)", "apple-m2-max-30core"),
    ("Intel 13900K (Nvidia 4090)", "rtx-4090-24gb"),
    ("Pi 5 - 8GB (AMD RX 6700 XT) 12GB", "radeon-rx-6700xt"),
    ("NVIDIA GB10 (DGX Spark)", "dgx-spark-gb10"),
    ("Raspberry Pi 5 CPU", "raspberry-pi-5"),
    ("Google TPU v5e", "tpu-v5e"),
    ("h100", "h100-sxm5-80gb"),
    ("8x H100", "h100-sxm5-80gb"),
    ("4xL40S", "l40s"),
    ("H200 x8", "h200-sxm-141gb"),
    ("TPU v5e-8", "tpu-v5e"),
    ("GeForce RTX 5090 32GB", "rtx-5090-32gb"),
    ("Mac mini M4 Pro", "apple-m4-pro"),
    ("Apple M4 Max (128GB)", "apple-m4-max"),
    ("M4 Max (40 core)", "apple-m4-max"),
    ("MacBook Pro M4 Max 128GB 40-core GPU", "apple-m4-max"),
    ("M2 Max 30-core GPU 64GB", "apple-m2-max-30core"),
    ("NVIDIA H100 80GB HBM3", "h100-sxm5-80gb"),
    ("NVIDIA A100-SXM4-40GB", "a100-sxm4-40gb"),
    ("RTX4090", "rtx-4090-24gb"),
    ("Jetson Orin AGX 64GB", "jetson-agx-orin-64gb"),
    ("H100 (8 GPUs)", "h100-sxm5-80gb"),
    ("8 GPUs H100", "h100-sxm5-80gb"),
    ("8-GPU H200", "h200-sxm-141gb"),
    ("L40S (x4)", "l40s"),
    ("p4de.24xlarge", "a100-sxm4-80gb"),
    ("inf2.48xlarge", "inferentia2"),
    ("HGX H200", "h200-sxm-141gb"),
    ("Mac Studio (M2 Ultra)", "apple-m2-ultra"),
    ("MacBook Pro 16 M3 Max", "apple-m3-max"),
    ("Cloud TPU v5e", "tpu-v5e"),
    ("TPU v5p-8", "tpu-v5p"),
    ("HPU Gaudi2", "gaudi2"),
])
def test_devices(printed: str, name: str) -> None:
    assert names.hardware_of(printed).name == name


@pytest.mark.parametrize("printed", [
    "NVIDIA H999 SXM", "NVIDIA 80GB GPU (A100 or H100, not stated)", "hosted API (together)",
    "NVIDIA H100 SXM 80GB (power-capped)", "NVIDIA GeForce RTX 4090 + RTX 3090 Ti",
    "RTX 3090 48GB", "A100 (80)", "M4 Max 33-core GPU", "9x", "x8", "H100 x", "RTX 4090 + RTX 3090",
    "2x Intel Xeon Gold 6454S (DDR5-4800) + RTX 4090 (14GB used)", "System76 (Nvidia A400)"])
def test_unknown_devices(printed: str) -> None:
    """A name that is nearly one of the catalogue is not that one."""
    with pytest.raises(UnknownError, match="device not in the catalogue: "):
        names.hardware_of(printed)


@pytest.mark.parametrize(("printed", "name", "ending"), [
    ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b", ""),
    ("Llama 2 - 13B", "llama-2-13b", ""),
    ("meta-llama/Llama-2-7b-hf", "llama-2-7b", ""),
    ("nvidia/Llama-3.1-8B-Instruct-FP8", "llama-3.1-8b", "fp8"),
    ("deepseek-ai/DeepSeek-R1", "deepseek-v3", ""),
    ("Mixtral 46.7B", "mixtral-8x7b", ""),
    ("llama-2-7b.Q4_0", "llama-2-7b", "q4_0"),
    ("llama-2-7b.Q4_K_M", "llama-2-7b", "q4_k_m"),
    ("Qwen3-30B-A3B-UD-Q4_K_XL", "qwen3-30b-a3b", "q4_k_xl"),
    ("Qwen3-32B-Q8_0", "qwen3-32b", "q8_0"),
    ("gpt-oss-20b-F16", "gpt-oss-20b", "f16"),
    ("shisa-v2-llama3.1-8b.i1-Q4_K_M", "llama-3.1-8b", "i1-q4_k_m"),
    ("Qwen2.5-7B-Instruct", "qwen2.5-7b", ""),
    ("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "llama-3.1-8b", ""),
    ("mlx-community/Llama-3.3-70B-Instruct-4bit", "llama-3.3-70b", "4bit"),
    ("unsloth/Llama-3.3-70B-Instruct-bnb-4bit", "llama-3.3-70b", "bnb-4bit"),
    ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", "llama-3.1-70b", "awq-int4"),
    ("llama3.1", "llama-3.1-8b", ""),
    ("Llama-3.1-8B-Instruct-Q4_K_M.gguf", "llama-3.1-8b", "q4_k_m"),
    ("qwen3moe 30B.A3B Q8_0", "qwen3-30b-a3b", "q8_0"),
    ("gpt-oss 20B MXFP4 MoE", "gpt-oss-20b", ""),
    ("LLaMA 7B v2", "llama-2-7b", ""),
    ("llama 8B Q4_K - Medium", "llama-3.1-8b", "q4_k - medium"),
    ("Llama-2-7B (W2)", "llama-2-7b", ""),
    ("TheBloke/Llama-2-13B-GPTQ", "llama-2-13b", "gptq"),
    ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b", ""),
    ("llama 13B mostly Q4_0", "llama-13b", "mostly q4_0"),
    ("Meta-Llama-3-8B-Instruct-exl2-4.0bpw", "llama-3-8b", "4.0bpw"),
    ("Phi3 3.8B", "phi-3.5-mini", ""),
    ("Gemma3n 2B", "gemma-3n-e2b", ""),
    ("nvidia/Llama-3_1-Nemotron-70B", "llama-3.1-70b", ""),
])
def test_models(printed: str, name: str, ending: str) -> None:
    model, written = names.model_of(printed)
    assert (model.name, written) == (name, ending)


def test_a_hint_is_of_the_same_family_and_size() -> None:
    """A name that only looks like another is no hint."""
    def said(printed: str) -> str:
        with pytest.raises(UnknownError) as error:
            names.model_of(printed)
        return str(error.value)

    assert said("StarCoder2-15B").endswith("(did you mean 'starcoder-15b'?)")
    for printed in ("OPT-66B", "RWKV7 1.5B", "ibm-granite/granite-3.1-8b-instruct",
                    "DeepSeekOCR 3B(A570M)", "Hermes 2 Pro", "Codestral-22B"):
        assert said(printed) == f"model not in the catalogue: {printed}"


@pytest.mark.parametrize("printed", ["Llama-9-8B", "RWKV7 1.5B", "Llama-3.1", "gpt-oss", "x"])
def test_unknown_models(printed: str) -> None:
    with pytest.raises(UnknownError, match="model not in the catalogue: "):
        names.model_of(printed)


@pytest.mark.parametrize(("engine", "version", "date", "device", "profile"), [
    ("vLLM", "0.3.2", "", "h100", "vllm-0.2"),
    ("vLLM", "0.6.4", "2026-01", "h100", "vllm-0.6"),      # the version counts, not the date
    ("vllm", "0.12.0", "", "h100", "vllm"),
    ("vLLM", "", "2023-11", "h100", "vllm-0.2"),
    ("vLLM", "", "2024-10", "h100", "vllm-0.6"),
    ("vLLM", "", "2024-10", "Intel Max 1550", "vllm-xpu"),
    ("vLLM", "0.10.2-xpu", "2025-11", "Intel Arc Pro B60 24GB", "vllm"),
    ("vLLM", "", "2025-11", "h100", "vllm"),
    ("vLLM", "", "", "h100", "vllm"),                      # neither: the newest
    ("TensorRT-LLM", "0.9.0", "", "h100", "tensorrt-llm-static"),
    ("TensorRT-LLM", "0.14.0", "", "h100", "tensorrt-llm-0.14"),
    ("trtllm", "1.2.0rc6", "", "b200", "tensorrt-llm"),
    ("llama.cpp", "", "2024-05", "rtx-4090", "llama.cpp-2024"),
    ("llama.cpp", "", "2025-08", "rtx-4090", "llama.cpp"),
    ("llama.cpp", "", "2024-05", "Apple M1 8-core GPU (68 GB/s)", "llama.cpp-metal"),
    ("llama.cpp", "", "2024-10", "AMD MI250", "llama.cpp-hip-2024"),
    ("llama.cpp", "", "2025-08", "AMD MI250", "llama.cpp-hip"),
    ("llama.cpp", "", "1752465700", "AMD MI250", "llama.cpp-hip"),    # seconds, no year in them
    ("llama.cpp", "", "1752202411", "AMD MI250", "llama.cpp-hip"),
    # AMD's and Intel's libraries are made for x86: what an Arm board runs is Vulkan.
    ("Ollama", "", "2025", "Pi 5 - 16GB (AMD Pro W7700)", "llama.cpp-vulkan"),
    ("Ollama", "", "2025", "Pi 500+ - 16GB (Intel Arc B580)", "llama.cpp-vulkan"),
    ("Ollama", "", "2025", "Pi CM5 - 16GB (Nvidia RTX 4090)", "llama.cpp"),
    ("Ollama", "", "2025", "Intel 265K Custom PC (AMD Radeon AI Pro R9700)", "llama.cpp-hip"),
    ("llama.cpp", "", "2024-10", "Intel PVC", "llama.cpp-sycl"),
    ("llama.cpp", "", "2025", "Raspberry Pi 5 CPU", "llama.cpp-cpu"),
    ("Ollama", "", "2025", "rtx-4090", "llama.cpp"),
    ("llama.cpp-vulkan", "a4575513", "", "strix-halo-8060s", "llama.cpp-vulkan"),
    ("AutoAWQ gemm", "", "2024", "rtx-4090", "autoawq"),
    ("AutoAWQ gemm", "", "2024", "CPU 48 cores Intel SPR 4th Gen Xeon",
     "transformers-cpu"),
    ("IPEX", "", "2023", "CPU 48 cores Intel SPR 4th Gen Xeon", "ipex"),
    ("ExLlama v2", "", "2025", "rtx-4090", "exllamav2"),
    ("TabbyAPI", "", "2025", "rtx-4090", "exllamav2"),
    ("LM Studio", "", "2025-06", "rtx-4090", "llama.cpp"),
    ("llama-cpp-python", "", "2025-06", "Apple M4 Max", "llama.cpp-metal"),
    ("llama-bench (Vulkan)", "", "2025-06", "rtx-4090", "llama.cpp-vulkan"),
    ("mlx-lm", "", "2025", "Apple M4 Max", "mlx"),
    ("vLLM V1", "", "2025-01", "h100", "vllm"),
    ("ROCm vLLM", "0.6.4", "", "mi300x", "vllm-0.6"),
    ("Triton + TensorRT-LLM", "", "2025-06", "h100", "tensorrt-llm"),
    ("NIM", "", "2025-06", "h100", "tensorrt-llm"),
    ("TensorRT LLM", "", "2025-06", "h100", "tensorrt-llm"),
    ("trt_llm", "0.9", "", "h100", "tensorrt-llm-static"),
    ("TensorRT-LLM v0.14", "", "2025-06", "h100", "tensorrt-llm-0.14"),
    ("vLLM (V0)", "", "2025-06", "h100", "vllm-0.6"),
    ("vllm-v1", "", "2024-06", "h100", "vllm"),
    ("vLLM v0.11.0", "", "", "h100", "vllm"),
    ("vLLM v0.6.3", "", "", "h100", "vllm-0.6"),
    ("SGL", "", "2025", "h100", "sglang"),
    ("llama cpp", "", "2025-06", "rtx-4090", "llama.cpp"),
    ("llama-server", "", "2025-06", "mi300x", "llama.cpp-hip"),
    ("Jan.ai", "", "2025-06", "rtx-4090", "llama.cpp"),
    ("exl2", "", "2025-06", "rtx-4090", "exllamav2"),
    ("HF", "", "2025", "h100", "transformers"),
    ("Hugging Face Transformers 4.46", "", "", "h100", "transformers"),
    ("PyTorch eager", "", "2025", "h100", "transformers"),
    ("Hugging Face transformers", "", "2025", "h100", "transformers"),
])
def test_engines(engine: str, version: str, date: str, device: str, profile: str) -> None:
    assert names.engine_of(engine, version, date, device) == profile


@pytest.mark.parametrize(("engine", "device", "maker"), [
    ("TensorRT-LLM", "MI300X", "AMD"), ("FasterTransformer", "Apple M2", "Apple"),
    ("Transformers NeuronX", "h100", "NVIDIA")])
def test_engines_of_one_maker(engine: str, device: str, maker: str) -> None:
    with pytest.raises(UnknownError, match=f"{engine} doesn't run on devices of {maker}"):
        names.engine_of(engine, "", "2025", device)


def test_several_devices_of_old_llama_cpp_share_rows() -> None:
    found = [names.engine_of("llama.cpp", "", date, "rtx-4090", several)
             for date in ("2023-10", "2024-02") for several in (False, True)]
    assert found == ["llama.cpp-2024", "llama.cpp-2023", "llama.cpp-2024", "llama.cpp-2024"]


@pytest.mark.parametrize(("printed", "host"), [
    ("Pi CM5 - 16GB (Nvidia RTX 4090)", "cortex-a76"),
    ("Radxa Orion O6 - 16GB (Nvidia RTX 3080 Ti)", "cortex-a720"),
    ("System76 Thelio Astra (Nvidia A4000)", "neoverse-n1"),
    ("Intel 265K Custom PC (Nvidia RTX 4090)", "core-ultra-7-265k"),
    ("Ryzen 9 7900X (Nvidia 4090)", "ryzen-9-7950x"),
    ("NVIDIA H100 SXM 80GB", None),
])
def test_hosts_beside_a_device(printed: str, host: str | None) -> None:
    assert names.host_of(printed).get("host") == host
    assert host is None or Hardware.load("rtx-4090").replace(host=host) is not None
    assert names.hardware_of(printed).host is None


@pytest.mark.parametrize("printed", ["", "SuperServe", "sglang + kt-kernel", "my vllm"])
def test_unknown_engines(printed: str) -> None:
    with pytest.raises(UnknownError, match="engine without a profile: "):
        names.engine_of(printed, "", "", "h100")


@pytest.mark.parametrize(("printed", "ending", "weights", "activations", "head"), [
    ("torch.bfloat16", "", "bf16", "bf16", None),
    ("W4A16 (GPTQ)", "", "int4-g128", "fp16", None),
    ("INT8 (W8A16)", "", "int8", "fp16", None),
    ("FP8 block", "", "fp8", "fp8", None),
    ("ModelOpt FP8", "", "fp8", "fp8", None),
    ("MXFP4 MoE", "", "mxfp4", "bf16", None),
    ("bf16", "", "bf16", "bf16", None),
    ("float16", "", "fp16", "fp16", None),
    ("FP8", "", "fp8", "fp8", None),
    ("nvfp4", "", "nvfp4", "nvfp4", None),
    ("int8", "", "int8", "fp16", None),                    # weights alone
    ("w8a8", "", "int8", "int8", None),                    # and activations
    ("AWQ", "", "int4-g128-z4", "fp16", None),
    ("gptq-int4", "", "int4-g128", "fp16", None),
    ("EXL2 4.0 bpw", "", "mix-4.0", "fp16", "q6_k"),
    ("w4a8 g256", "", "int4-g256", "int8", "int8"),
    ("Q4_K_M", "", "q4_k_m", "fp16", "q6_k"),
    ("llama 7B Q4_K - Medium", "", "q4_k_m", "fp16", "q6_k"),
    ("Q8_0", "", "q8_0", "fp16", "q8_0"),
    ("AWQ-4bit", "", "int4-g128-z4", "fp16", None),
    ("AWQ INT4", "", "int4-g128-z4", "fp16", None),
    ("awq_marlin", "", "int4-g128-z4", "fp16", None),
    ("GPTQ-4bit", "", "int4-g128", "fp16", None),
    ("4-bit", "", "int4-g128", "fp16", None),
    ("fp8_e4m3", "", "fp8", "fp8", None),
    ("FP8 (W8A8)", "", "fp8", "fp8", None),
    ("W8A8-INT8", "", "int8", "int8", None),
    ("fp16/bf16", "", "fp16", "fp16", None),
    ("4.0bpw", "", "mix-4.0", "fp16", "q6_k"),
    ("NF4", "", "nf4", "fp16", None),
    ("Q3_K_L", "", "q3_k_l", "fp16", "q6_k"),
    ("Q5_K_S", "", "q5_k_s", "fp16", "q6_k"),
    ("IQ4_XS", "", "iq4_xs", "fp16", "q6_k"),
    ("Q8", "", "q8_0", "fp16", "q8_0"),
    ("", "4bit", "int4-g128", "fp16", None),
    ("", "q4_0", "q4_0", "fp16", "q6_k"),                  # what the model's name ends in
    ("", "i1-q4_k_m", "q4_k_m", "fp16", "q6_k"),
])
def test_formats(printed: str, ending: str, weights: str, activations: str,
                 head: str | None) -> None:
    found = names.formats_of(printed, ending)
    assert (found["weights"], found["activations"], found.get("head")) == (
        weights, activations, head)


@pytest.mark.parametrize(("printed", "message"), [
    ("", "not stated"), ("fp3", "without a rule: fp3"), ("6-bit", "without a rule"),
    ("iq9_x", "without a rule"),
    ("int4/int8 mix", "without a rule")])
def test_unknown_formats(printed: str, message: str) -> None:
    with pytest.raises(UnknownError, match=message):
        names.formats_of(printed, "")


@pytest.mark.parametrize(("printed", "stated", "count"), [
    ("8x H100", 8, 8), ("8x H100", None, 8), ("H100", 8, 8), ("H100", None, None),
    ("RTX 4090", 2, 2), ("7900 XTX", 1, 1), ("TPU v5e-8", None, 8),
    ("TPU v6e-4", None, 4), ("TPU v5p-8", None, 4), ("Google TPU v4-8", None, 4)])
def test_devices_counted_in_a_name(printed: str, stated: int | None, count: int | None) -> None:
    assert names.devices_of(printed, stated) == count


def test_a_name_that_counts_otherwise() -> None:
    with pytest.raises(UnknownError, match="2x RTX 3090, and n_devices says 4"):
        names.devices_of("2x RTX 3090", 4)


def test_a_row_may_use_some_devices_of_a_rented_machine() -> None:
    """p5.48xlarge: eight H100."""
    assert [names.devices_of("p5.48xlarge", n) for n in (None, 8, 2)] == [8, 8, 2]
    with pytest.raises(UnknownError, match="n_devices says 16"):
        names.devices_of("p5.48xlarge", 16)


def test_every_rented_machine_is_of_a_device() -> None:
    for machine in names.rules()["machines"]:
        assert names.hardware_of(machine).name in names.rules()["machines"][machine]


def test_kv_formats() -> None:
    assert [names.kv_format_of(t) for t in ("", "auto", "FP16", "fp8_e4m3", "q8_0", "int4")] == [
        None, "bf16", "fp16", "fp8", "int8", "int4-g128"]
    with pytest.raises(UnknownError, match="KV format without a rule: fp2"):
        names.kv_format_of("fp2")


def test_lengths() -> None:
    assert names.length_of(None) is None
    assert names.length_of(512.0) == 512.0
    assert names.length_of("few tokens") == 8.0
    with pytest.raises(UnknownError, match="length is not a number: ShareGPT"):
        names.length_of("ShareGPT")


def test_processors() -> None:
    """Cores on DDR are a CPU; a GPU that shares LPDDR with one isn't."""
    for device, cpu in (("raspberry-pi-5", True), ("xeon-8480-plus", True), ("h100", False),
                        ("strix-halo-8060s", False), ("rtx-4090", False)):
        assert names.is_cpu(names.hardware_of(device)) == cpu, device


def test_benchmarks_whose_script_is_known() -> None:
    # InferenceMAX: ten requests a user, lengths between 0.8 of the printed ones and all of them.
    assert names.protocol_of("id=x; InferenceX/InferenceMAX db-dump") == (10.0, 0.9)
    assert names.protocol_of("README table 1") == (None, 1.0)
    # vllm bench serve --request-rate inf, without a limit: all at once, one each.
    assert names.protocol_of("Arc Pro B-series post") == (1.0, 1.0)
