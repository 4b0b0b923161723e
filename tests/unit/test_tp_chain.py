from __future__ import annotations

from dataclasses import replace

import pytest
from kineto_traces import decoder

from analysis.tp.allreduce import Microbenchmark
from analysis.tp.chain import Facts, Load, explain, verdict
from analysis.tp.config import BadConfig, model_of_config
from analysis.tp.cost import Shape
from analysis.tp.kineto import read_kineto
from analysis.tp.nccl import BadNccl, read_nccl
from analysis.tp.path import BadTopology, NcclLog, read_nccl_log, read_topology
from analysis.tp.profile import summarise
from analysis.tp.types import TokenTimes

NVLINK = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tNV18\tNV18\tPXB\t0-47\t0\t\tN/A
GPU1\tNV18\t X \tNV18\tNV18\tPXB\t0-47\t0\t\tN/A
GPU2\tNV18\tNV18\t X \tNV18\tNODE\t0-47\t0\t\tN/A
GPU3\tNV18\tNV18\tNV18\t X \tNODE\t0-47\t0\t\tN/A
NIC0\tPXB\tPXB\tNODE\tNODE\t X

Legend:

  X    = Self
"""
HOST = """\
        GPU0    GPU1    CPU Affinity    NUMA Affinity
GPU0     X      SYS     0-31            0
GPU1    SYS      X      32-63           1
"""
LOG = """\
box:1:1 [0] NCCL INFO cudaDriverVersion 12080
box:1:2 [0] NCCL INFO NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)
box:1:2 [0] NCCL INFO Channel 00/24 : 0 1 2 3
box:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
box:1:2 [0] NCCL INFO Channel 01/0 : 0[1000] -> 1[2000] via P2P/IPC/read
box:1:2 [0] NCCL INFO Channel 02/0 : 0[0] -> 1[1] via SHM/direct/direct
box:1:2 [0] NCCL INFO Channel 03/0 : 4[0] -> 0[0] [receive] via NET/Socket/0
box:1:2 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1000 - Init COMPLETE
box:1:2 [0] misc/socket.cc:1 NCCL WARN socketProgress: Connection closed by remote peer
"""
SHAPE = Shape(hidden=64, mlp=256, layers=2, heads=8, kv_heads=4, head_size=8)
BENCH = Microbenchmark(ranks=4, times=((1024, 8e-6), (4096, 11e-6)))
PROFILE = summarise(read_kineto([decoder().text()]))
ALONE = TokenTimes(pairs=((16.0, 320e-6),))
FACTS = Facts(
    ranks=4,
    shape=SHAPE,
    topology=read_topology(NVLINK),
    log=NcclLog(transports={"P2P/CUMEM": 8}, ranks=(4,), nvls=True, warnings=0, warning=""),
    nccl=BENCH,
    profile=PROFILE,
    alone=ALONE,
    load=Load(rate=2.0, server={"iteration_tokens": {"n": 10, "mean": 9.0}}, ttft_s=0.5, by_replica=(50, 50)),
)


def test_where_all_holds_nothing_explains() -> None:
    links = explain(FACTS)
    assert [link.state for link in links] == ["holds"] * 6
    assert verdict(links) == "No link explains it: tensor parallelism works as the model says"
    texts = [link.text for link in links]
    assert "6 pairs NV18" in texts[1]
    assert "9.0 µs at S = 2048 B, 2L of them 36.0 µs a step" in texts[2]
    assert "projections take 1.00 times t_proj,1/p" in texts[4]


@pytest.mark.parametrize(
    ("changes", "at", "said"),
    [
        ({"inapplicable": ("a mixture of experts",)}, 0, "a mixture of experts"),
        ({"shape": replace(SHAPE, kv_heads=2)}, 0, "4 ranks and 2 KV heads: each is kept 2 times"),
        ({"shape": replace(SHAPE, mlp=258)}, 0, "4 ranks do not divide MLP width = 258"),
        ({"shape": replace(SHAPE, activation_bytes=4)}, 0, "payload 2048 B, T·H·e_a = 16·64·4 = 4096 B"),
        ({"ranks": 2}, 0, "the profile's group has 4 ranks, not 2"),
        ({"topology": read_topology(HOST)}, 1, "GPU0–GPU1 SYS: through the link of the sockets"),
        ({"log": read_nccl_log(LOG.splitlines())}, 1, "1 channels via SHM/direct: through the host's memory"),
        ({"alone": TokenTimes(pairs=((16.0, 40e-6),))}, 2, "saved by 4 ranks at T = 16"),
        ({"nccl": Microbenchmark(ranks=4, times=((1024, 4e-6), (4096, 6e-6)))}, 3, "times nccl-tests'"),
        ({"alone": TokenTimes(pairs=((16.0, 240e-6),))}, 4, "projections take 1.33 times t_proj,1/p (limit 1.25)"),
        ({"load": replace(FACTS.load, by_replica=(30, 70))}, 5, "requests by replica 30, 70: 40% off the mean"),
        ({"load": replace(FACTS.load, server={"queue_s": {"mean": 0.4}})}, 5, "queued of 500ms TTFT"),
    ],
)  # fmt: skip
def test_the_chain_stops_at_the_first_link_that_explains(changes, at: int, said: str) -> None:  # type: ignore[no-untyped-def]
    links = explain(replace(FACTS, **changes))
    assert [link.state for link in links] == ["holds"] * at + ["explains"] + ["not reached"] * (5 - at)
    assert said in links[at].text
    assert verdict(links).startswith(f"The first link that explains it is {links[at].name}: ")


def test_a_link_without_input_names_the_option() -> None:
    links = explain(Facts(ranks=4))
    assert [link.state for link in links] == ["not checked"] * 6
    for link, option in zip(
        links, ("--config", "--topo", "--nccl", "--profile", "--profile", "--results"), strict=True
    ):
        assert f"give {option}" in link.text
    assert verdict(links).endswith("shapes, path, microbenchmark, all-reduce in the server, GEMMs, load")
    outside = explain(replace(FACTS, nccl=Microbenchmark(ranks=4, times=((4096, 1e-6), (8192, 1e-6)))))
    assert "outside of what it measured, 4096 to 8192 B" in outside[2].text


def test_an_nccl_log_is_counted_by_transport() -> None:
    log = read_nccl_log(LOG.splitlines())
    assert log.transports == {"P2P/CUMEM": 1, "P2P/IPC/read": 1, "SHM/direct/direct": 1, "NET/Socket/0": 1}
    assert (log.ranks, log.nvls, log.warnings) == ((4,), True, 1)
    assert log.warning.startswith("socketProgress")


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "no row of GPU names"), ("GPU0 GPU1\nGPU0 X", "the row of GPU0"), ("a b\nc d", "no row of GPU names"),
     (HOST.replace("SYS", "FAST"), "GPU0 to GPU1 is FAST")],
)  # fmt: skip
def test_a_table_of_another_form_is_refused(text: str, said: str) -> None:
    with pytest.raises(BadTopology, match=said):
        read_topology(text)


def test_a_log_without_nccl_is_refused() -> None:
    with pytest.raises(BadTopology, match="NCCL_DEBUG=INFO"):
        read_nccl_log(["INFO: started"])


def test_a_microbenchmark_is_read_by_its_header_and_interpolated_inside_only() -> None:
    text = """\
#  Rank  0 Group  0 Pid      1 on box device  0 [0x01] NVIDIA H100
#  Rank  1 Group  0 Pid      1 on box device  1 [0x02] NVIDIA H100
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           512  bfloat16     sum      -1    10.00    0.10    0.10      0     9.00    0.10    0.10      0
        3072          1536  bfloat16     sum      -1    20.00    0.10    0.10      0     9.00    0.10    0.10      0
"""
    found = read_nccl(text.splitlines()).measured()
    assert found.ranks == 2
    assert found.all_reduce_s(2048) == pytest.approx(15e-6)
    assert found.all_reduce_s(3072) == pytest.approx(20e-6)
    assert found.all_reduce_s(4096) is None
    with pytest.raises(BadNccl, match="7 wrong results"):
        read_nccl(text.replace("0.10      0     9.00", "0.10      7     9.00", 1).splitlines()).measured()
    with pytest.raises(BadNccl, match="no rows"):
        read_nccl(["hello"])


def test_a_config_gives_the_shape() -> None:
    text = b"""{"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
               "num_key_value_heads": 8, "vocab_size": 128256, "torch_dtype": "float32"}"""
    shape = model_of_config(text).shape
    assert (shape.kv_width, shape.layers, shape.mlp, shape.activation_bytes) == (1024, 32, 14336, 4)
    assert model_of_config(b'{"text_config": ' + text + b"}").shape == shape
    for bad, said in ((b"[", "not valid JSON"), (b"[]", "not a JSON object"), (b"{}", "num_attention_heads is missing"),
                      (text.replace(b"32,", b"-1,", 1), "num_hidden_layers is -1")):  # fmt: skip
        with pytest.raises(BadConfig, match=said):
            model_of_config(bad)


def test_a_microbenchmark_of_another_number_of_ranks_is_compared_with_nothing() -> None:
    eight = Microbenchmark(ranks=8, times=((1024, 1e-3), (4096, 2e-3)))  # so slow that it would explain the server
    links = explain(replace(FACTS, nccl=eight))
    assert links[2].state == "not checked"
    assert "--nccl measured 8 ranks and the server has 4: run all_reduce_perf on 4" in links[2].text
    assert "times nccl-tests'" not in links[3].text
