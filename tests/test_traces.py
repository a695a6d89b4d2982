"""Traces: every published shape, and each thing that can be wrong with a file.

The small files here are written in the shapes; their numbers are made up.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.serving.arrivals import Arrivals
from simulator.serving.requests import Requests, requests_of
from simulator.serving.traces import FAILED, NO_PROMPT, load_trace, parse_duration, parse_window

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224671,879,55
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00.017335+00:00,2399,6
"""
AZURE_2025 = """TIMESTAMP,NumImages,ContextTokens,GeneratedTokens
2025-01-01 00:00:00.000,2,374,44
2025-01-01 00:00:02.500,0,396,109
"""
BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,API log
"""
BURST_SESSIONS = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,\
Total tokens,Log Type
5.5,1,0.9,ChatGPT,472,18,490,Conversation log
45.5,2,,ChatGPT,1087,20,1107,Conversation log
"""
ARRIVED = """arrived_at,num_prefill_tokens,num_decode_tokens
0.5,100,20
1.25,200,30
"""
LENGTHS = """num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio
3742,284,4026,0.0759
18,243,261,13.5
26,279,305,10.73
"""
MOONCAKE = "".join(json.dumps(row) + "\n" for row in (
    {"timestamp": 0, "input_length": 1100, "output_length": 50, "hash_ids": [0, 1, 2]},
    {"timestamp": 3000, "input_length": 600, "output_length": 5, "hash_ids": [0, 3]},
    {"timestamp": 4500, "input_length": 10, "output_length": 7, "hash_ids": []}))
TOKS = """{"input_toks": 128, "output_toks": 16, "arrival_time_ns": 1000000000}
{"input_toks": 256, "output_toks": 32, "arrival_time_ns": 1500000000}
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A file with a content."""
    def to_file(content: str | bytes, name: str = "trace.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return to_file


@pytest.mark.parametrize(("content", "arrival", "prompt", "output"), [
    (AZURE, [0, 4.314579, 4.5418771], [374, 396, 879], [44, 109, 55]),
    (AZURE_2024, [0, 0.007405], [2162, 2399], [5, 6]),
    (AZURE_2025, [0, 2.5], [374, 396], [44, 109]),
    (BURST, [0, 113], [472, 417], [18, 276]),
    (BURST_SESSIONS, [0, 40], [472, 1087], [18, 20]),
    (ARRIVED, [0, 0.75], [100, 200], [20, 30]),
    (MOONCAKE, [0, 3, 4.5], [1100, 600, 10], [50, 5, 7]),
    (TOKS, [0, 0.5], [128, 256], [16, 32])])
def test_every_shape_is_told_apart(write: Write, content: str, arrival: list[float],
                                   prompt: list[int], output: list[int]) -> None:
    r = load_trace(write(content))
    assert r.arrival == pytest.approx(arrival, abs=1e-9)
    assert r.input.tolist() == prompt
    assert r.output.tolist() == output


def test_mooncake_keeps_its_prefix_blocks(write: Write) -> None:
    r = load_trace(write(MOONCAKE))
    assert r.block_tokens == 512
    assert [r.blocks_of(i).tolist() for i in range(3)] == [[0, 1, 2], [0, 3], []]


def test_lengths_alone_need_a_rate(write: Write) -> None:
    path = write(LENGTHS)
    with pytest.raises(InputError, match="no arrival times: give --rate"):
        load_trace(path)
    r = load_trace(path, rate=2.0, arrivals=Arrivals("constant", 0.0))
    assert r.arrival == pytest.approx([0.5, 1.0, 1.5])
    assert r.input.tolist() == [3742, 18, 26]
    assert "made up" in r.notes[0]
    with pytest.raises(InputError, match="--window has no meaning"):
        load_trace(path, rate=2.0, window=(0.0, 1.0))


def test_failed_requests_are_left_out_counted_and_said(write: Write) -> None:
    r = load_trace(write(BURST))
    assert r.dropped == {FAILED: 1}
    assert r.notes == (f"1 of 3 requests left out: {FAILED}",)
    r = load_trace(write(ARRIVED + "2,0,5\n"))
    assert r.dropped == {NO_PROMPT: 1}


def test_a_trace_of_failures_alone_is_refused(write: Write) -> None:
    with pytest.raises(InputError, match=r"no request to serve \(1 failed"):
        load_trace(write("arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,0\n"))


def test_unsorted_arrivals_are_sorted_with_their_lengths_and_blocks(write: Write) -> None:
    r = load_trace(write(ARRIVED + "0.75,300,40\n"))
    assert r.arrival == pytest.approx([0, 0.25, 0.75])
    assert r.input.tolist() == [100, 300, 200]
    assert r.notes == ("arrivals go back in time at 1 places: sorted",)
    lines = MOONCAKE.splitlines(keepends=True)
    r = load_trace(write(lines[2] + lines[0] + lines[1]))
    assert [r.blocks_of(i).tolist() for i in range(3)] == [[0, 1, 2], [0, 3], []]


@pytest.mark.parametrize("content", [
    AZURE.replace("\n", "\r\n"), "\ufeff" + AZURE, AZURE.rstrip("\n"), AZURE + "\n\n"])
def test_line_ends_marks_and_blank_lines_change_nothing(write: Write, content: str) -> None:
    same, plain = load_trace(write(content)), load_trace(write(AZURE, "plain.csv"))
    assert np.array_equal(same.arrival, plain.arrival)
    assert np.array_equal(same.output, plain.output)
    assert same.notes == ()


@pytest.mark.parametrize("content", [AZURE, MOONCAKE])
def test_gzip_is_unpacked(write: Write, content: str) -> None:
    r = load_trace(write(gzip.compress(content.encode()), "trace.gz"))
    assert np.array_equal(r.input, load_trace(write(content)).input)


@pytest.mark.parametrize("content", [
    AZURE + "2023-11-16 18:15:5", AZURE + "2023-11-16 18:15:52.1,39",
    MOONCAKE + '{"timestamp": 5000, "input_len'])
def test_a_last_line_cut_short_is_left_out_and_said(write: Write, content: str) -> None:
    r = load_trace(write(content))
    assert len(r) == 3
    assert "is cut short: left out" in r.notes[0]


def test_a_repeated_header_is_left_out_and_said(write: Write) -> None:
    r = load_trace(write(AZURE + AZURE))
    assert len(r) == 6
    assert "the header stands again in line 5" in r.notes[0]


HEADER = "arrived_at,num_prefill_tokens,num_decode_tokens\n"


@pytest.mark.parametrize(("content", "words"), [
    ("", "is empty"),
    ("\n \n", "is empty"),
    (HEADER, "has a header and no rows"),
    (b"\x7fELF\0\0\0\1", "binary, not text"),
    (b"PAR1\0\0", "Parquet file: write it as CSV"),
    ("\ufeff".encode("utf-16-le") + AZURE.encode("utf-16-le"), "UTF-16"),
    (gzip.compress(AZURE.encode())[:-12], "gzip file is cut short"),
    ("a,b,c\n1,2,3\n", "the header of no known trace"),
    ("1,2,3\n4,5,6\n", "the header of no known trace"),
    ("TIMESTAMP,ContextTokens,GeneratedToken\n1,2,3\n",
     "no column 'generatedtokens'.*did you mean 'generatedtoken'"),
    ("TIMESTAMP,ContextTokens,ContextTokens,GeneratedTokens\n1,2,3,4\n",
     "names 'contexttokens' twice"),
    (HEADER + "0,-5,10\n1,5,5\n", "line 2: num_prefill_tokens: -5 is negative"),
    (HEADER + "0,5,10\n-1,5,5\n", "line 3: arrived_at: -1.0 is negative|-1 is negative"),
    (HEADER + "0,NaN,10\n1,5,5\n", "line 2: num_prefill_tokens: is empty or NaN"),
    (HEADER + "0,5,10\n\n1,x7,5\n2,5,5\n", "line 4: num_prefill_tokens: 'x7' is not a number"),
    (HEADER + "0,5,1.5\n1,5,5\n", "line 2: num_decode_tokens: 1.5 is not a whole number"),
    (HEADER + "0,5,1e12\n1,5,5\n", "line 2: num_decode_tokens: .* is not a whole number"),
    (HEADER + "inf,5,5\n1,5,5\n", "line 2: arrived_at: 'inf' is not a number"),
    (AZURE.replace("2023-11-16 18:15:50.9951690", "yesterday"),
     "line 3: timestamp: 'yesterday' is not a number or date"),
    (HEADER + "0,5,5,9,9\n1,5,5\n", "line 2 has 5 fields, the header 3"),
    ('[{"timestamp": 0}]', "is one JSON list"),
    ("{not json}\n{}", "not a whole JSON object"),
    ('{"a": 1, "output_len": 2}\n', "those of no known trace"),
    (MOONCAKE.replace('"timestamp": 3000', '"timestamp": "x"'), "line 2: Expected"),
    (MOONCAKE.replace('"input_length": 600', '"input_length": -600'), "object 2: input_length"),
    (MOONCAKE.replace('"timestamp": 3000', '"timestamp": -1'), "object 2: timestamp"),
    (MOONCAKE.replace("[0, 3]", "[0, 3"), "line 2 is not a whole JSON object"),
    (MOONCAKE.replace("[0, 3]", "[0, 99999999999999999999999]"), "hash_ids")])
def test_bad_files_end_with_one_line_that_names_the_place(write: Write, content: str | bytes,
                                                          words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        load_trace(write(content))
    assert "trace.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_and_a_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        load_trace(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        load_trace(tmp_path / "none.csv")


def test_window_limit_and_scale(write: Write) -> None:
    rows = "".join(f"{10 + i},{100 + i},{5}\n" for i in range(100))
    path = write(HEADER + rows)
    r = load_trace(path, window=(10.0, 20.0))
    assert r.arrival.tolist() == list(range(10))
    assert r.input.tolist() == list(range(110, 120))
    assert len(load_trace(path, limit=7)) == 7
    twice = load_trace(path, scale=2.0)
    assert twice.rate == pytest.approx(2.0)
    assert load_trace(path, rate=5.0).rate == pytest.approx(5.0)
    with pytest.raises(InputError, match="no request arrives between"):
        load_trace(path, window=(1000.0, 2000.0))


@pytest.mark.parametrize(("options", "word"), [
    ({"scale": 0.0}, "--scale"), ({"scale": float("nan")}, "--scale"), ({"limit": 0}, "--limit"),
    ({"rate": -3.0}, "--rate")])
def test_bad_options_are_refused(write: Write, options: dict[str, float], word: str) -> None:
    with pytest.raises(InputError, match=word):
        load_trace(write(AZURE), **options)  # type: ignore[arg-type]


def test_windows_and_durations() -> None:
    assert parse_window("10min:20min") == (600.0, 1200.0)
    assert parse_window("1h:") == (3600.0, float("inf"))
    assert parse_window(":90") == (0.0, 90.0)
    assert parse_duration("250 ms", "--start-up") == 0.25
    for text in ("5", "20:10", "x:y", "-1:5"):
        with pytest.raises(InputError, match="--window"):
            parse_window(text)


def test_requests_refuse_what_no_queue_can_take() -> None:
    for arrival, prompt, output in (([1.0, 0.0], [1, 1], [1, 1]), ([0.0], [0], [1]),
                                    ([0.0], [1], [0]), ([0.0, 1.0], [1], [1]),
                                    ([float("nan")], [1], [1])):
        with pytest.raises(InputError, match="requests"):
            requests_of(np.array(arrival), np.array(prompt), np.array(output))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(st.integers(0, 50), max_size=6), min_size=1, max_size=20), st.data())
def test_taking_requests_keeps_each_with_its_blocks(ids: list[list[int]],
                                                    data: st.DataObject) -> None:
    n = len(ids)
    starts = np.concatenate([[0], np.cumsum([len(one) for one in ids])]).astype(np.int64)
    r = Requests(np.arange(n, dtype=np.float64), np.arange(1, n + 1), np.arange(1, n + 1),
                 np.array([x for one in ids for x in one], dtype=np.int64), starts, 512)
    index = np.array(sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1))))
    part = r.take(index)
    assert part.input.tolist() == (index + 1).tolist()
    assert [part.blocks_of(i).tolist() for i in range(len(index))] == [ids[i] for i in index]


def test_a_long_trace_is_read_in_seconds(write: Write) -> None:
    import time

    n = 300_000
    stamps = np.datetime_as_string(np.datetime64("2024-05-10T00:00:00", "us")
                                   + np.arange(n) * np.timedelta64(1_500, "us"))
    rows = "\n".join(f"{s.replace('T', ' ')}+00:00,{100 + i % 7},{5 + i % 3}"
                     for i, s in enumerate(stamps))
    path = write("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows + "\n")
    began = time.process_time()
    r = load_trace(path)
    assert len(r) == n
    assert time.process_time() - began < 5.0
