"""Results on disk."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from mainspring.sdk.spool import Spool, Spooled


def a_result(text: str = "ok") -> Spooled:
    return Spooled(str(uuid.uuid4()), str(uuid.uuid4()), {"outcome": "done", "result": text})


def test_what_is_put_is_there_for_the_next_process_and_gone_when_removed(tmp_path: Path) -> None:
    kept, gone = a_result(), a_result()
    for result in (kept, gone):
        Spool(tmp_path / "spool").put(result)
    Spool(tmp_path / "spool").remove(gone.run_id, gone.claim_id)
    assert Spool(tmp_path / "spool").waiting() == [kept]
    assert Spool(tmp_path / "spool").get(kept.run_id, kept.claim_id) == kept
    assert Spool(tmp_path / "spool").get(gone.run_id, gone.claim_id) is None


def test_results_are_for_their_owners_eyes(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    spool.put(a_result())
    assert spool.folder.stat().st_mode & 0o077 == 0
    assert [path.stat().st_mode & 0o077 for path in spool.folder.iterdir()] == [0]


def test_a_file_that_a_crash_left_half_written_is_not_sent(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    whole, half = a_result(), a_result()
    spool.put(whole)
    (tmp_path / f"{half.run_id}.{half.claim_id}.4711.new").write_text('{"version": 1, "run_')
    assert spool.waiting() == [whole]


def test_a_file_that_is_no_result_is_set_aside_and_stops_no_other(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    whole, broken = a_result(), a_result()
    spool.put(whole)
    (tmp_path / f"{broken.run_id}.{broken.claim_id}.json").write_text("not JSON")
    assert spool.waiting() == [whole]
    assert [path.suffix for path in tmp_path.iterdir() if broken.run_id in path.name] == [".unreadable"]


@pytest.mark.parametrize(
    "text",
    [
        '{{"run_id": "{run}", "claim_id": "{claim}", "body": {{"outcome": "retry", "after_seconds": Infinity}}}}',
        '{{"run_id": "{run}", "claim_id": "{claim}", "body": []}}',
        '{{"run_id": "{run}", "claim_id": "else", "body": {{"outcome": "done"}}}}',
    ],
)
def test_a_file_that_could_never_be_sent_is_set_aside(tmp_path: Path, text: str) -> None:
    one = a_result()
    path = tmp_path / f"{one.run_id}.{one.claim_id}.json"
    path.write_text(text.format(run=one.run_id, claim=one.claim_id))
    assert Spool(tmp_path).waiting() == []
    assert [left.suffix for left in tmp_path.iterdir()] == [".unreadable"]


def test_what_is_no_json_is_not_written(tmp_path: Path) -> None:
    one = a_result()
    with pytest.raises(ValueError, match="JSON compliant"):
        Spool(tmp_path).put(
            Spooled(one.run_id, one.claim_id, {"outcome": "retry", "after_seconds": float("inf")})
        )
    assert list(tmp_path.iterdir()) == []


def test_what_the_server_refuses_is_kept_with_its_reason(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    result = a_result()
    spool.put(result)
    where = spool.refuse(result.run_id, result.claim_id, "no such outcome")
    assert where is not None
    assert where.with_suffix(".reason").read_text() == "no such outcome\n"
    assert spool.waiting() == []


def test_an_id_is_never_a_path(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not the ids"):
        Spool(tmp_path).remove("../../etc", "passwd")


def test_each_server_has_a_folder_of_its_own(tmp_path: Path) -> None:
    environ = {"MAINSPRING_SPOOL": str(tmp_path)}
    one, other = (Spool.of(url, environ=environ).folder for url in ("http://one", "http://other"))
    assert one != other
    assert one.parent == tmp_path
