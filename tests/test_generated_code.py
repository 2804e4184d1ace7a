"""The generated protobuf code is what proto/ would generate now."""

from pathlib import Path

from proto.generate import ROOT, generate


def test_generated_code_is_fresh(tmp_path: Path) -> None:
    generated = generate(tmp_path)
    assert generated
    for module in generated:
        assert (tmp_path / module).read_text() == (ROOT / module).read_text(), (
            f"{module} is stale; run `make proto`"
        )
