import pytest

from knee.catalog.accelerators import Accelerator, accelerator, all_accelerators
from knee.core.errors import UsageError


@pytest.mark.parametrize("item", all_accelerators(), ids=lambda item: item.name)
def test_every_entry_is_consistent(item: Accelerator) -> None:
    assert accelerator(item.name) is item
    assert all(accelerator(alias) is item for alias in item.aliases)
    assert item.source
    assert item.memory_source
    assert 10 < item.memory_gib < 300
    assert 250 < item.bandwidth_gb_s < 10_000
    assert 50 < item.bf16_tflops < 5000
    assert item.fp8_tflops is None or 1.9 < item.fp8_tflops / item.bf16_tflops < 2.1


def test_aliases_are_unique() -> None:
    aliases = [alias for item in all_accelerators() for alias in item.aliases]
    assert len(set(aliases)) == len(aliases)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("Tesla V100-SXM2-16GB", "V100-16GB"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("AMD Instinct MI300X", "MI300X"),
        ("l40s", "L40S"),
    ],
)
def test_names_as_drivers_report_them_are_found(name: str, found: str) -> None:
    assert accelerator(name).name == found


@pytest.mark.parametrize("name", ["", "H1000", "NVIDIA", "TPU v5e"])
def test_an_unknown_device_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UsageError, match=r"no accelerator called .*known: H100, "):
        accelerator(name)
