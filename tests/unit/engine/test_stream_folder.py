"""Where a stream keeps its checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from ematix_flow.engine.streams.stream_folder import stream_folder_for
from ematix_flow.errors import ConfigError
from ematix_flow.spec.streams import StreamSpec


def test_a_checkpoint_that_cannot_be_made_names_the_option_that_chose_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    place = stream_folder_for(StreamSpec("s", (), (), checkpoint=str(tmp_path / "file" / "below")))
    with pytest.raises(ConfigError) as refused:
        place.create()
    assert refused.value.next_step == "make it writable, or set checkpoint= to a folder that is"


def test_a_folder_of_the_state_root_that_cannot_be_made_names_the_state_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EMATIX_FLOW_STATE", str(tmp_path / "file"))
    with pytest.raises(ConfigError) as refused:
        stream_folder_for(StreamSpec("s", (), ())).create()
    assert "set EMATIX_FLOW_STATE" in (refused.value.next_step or "")
