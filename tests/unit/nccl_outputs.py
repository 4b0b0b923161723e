"""Outputs of all_reduce_perf, written by hand in the forms of its versions; the numbers are made up.

But for `WRONG` all are of 4 ranks (busbw/algbw = 1.5), with times of 10, 12 and 40 µs at 4, 64 and 1024 KiB.
"""

from __future__ import annotations

from typing import Final

EARLY: Final = """\
nThread 1 nGpus 4 minBytes 4096 maxBytes 1048576 step: 16(factor) warmup iters: 5 iters: 20 validation: 1
# NCCL Tests compiled with NCCL 2.1
# Using devices
#   Rank  0 on       node device  0 [0x00] Tesla P100-PCIE-16GB
#   Rank  1 on       node device  1 [0x00] Tesla P100-PCIE-16GB
#   Rank  2 on       node device  2 [0x00] Tesla P100-PCIE-16GB
#   Rank  3 on       node device  3 [0x00] Tesla P100-PCIE-16GB

#                                                 out-of-place                    in-place
#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res
        4096          1024   float     sum    10.00   0.41   0.61    0e+00     9.50   0.43   0.65    0e+00
       65536         16384   float     sum    12.00   5.46   8.19    2e-07    11.50   5.70   8.55    2e-07
     1048576        262144   float     sum    40.00  26.21  39.32    5e-07    39.00  26.89  40.33      N/A
 Out of bounds values : 0 OK
 Avg bus bandwidth    : 16.04
"""
ERROR: Final = """\
# nThread 1 nGpus 1 minBytes 4096 maxBytes 1048576 step: 16(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
#   Rank  0 Pid   1320 on         node device  0 [0x00] Tesla V100-SXM2-16GB
#   Rank  1 Pid   1321 on         node device  1 [0x00] Tesla V100-SXM2-16GB
#   Rank  2 Pid   1322 on         node device  2 [0x00] Tesla V100-SXM2-16GB
#   Rank  3 Pid   1323 on         node device  3 [0x00] Tesla V100-SXM2-16GB
#
#                                                       out-of-place                       in-place
#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                       (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        4096          1024     float     sum    10.00    0.41    0.61  1e-07     9.50    0.43    0.65  1e-07
       65536         16384     float     sum    12.00    5.46    8.19  1e-07    11.50    5.70    8.55  1e-07
     1048576        262144     float     sum    40.00   26.21   39.32    N/A    39.00   26.89   40.33    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 16.04
#
"""
ROOT: Final = """\
# nThread 1 nGpus 4 minBytes 4096 maxBytes 1048576 step: 16(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   6899 on       node device  0 [0000:04:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   6899 on       node device  1 [0000:05:00] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid   6899 on       node device  2 [0000:0b:00] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid   6899 on       node device  3 [0000:0c:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place          
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       
           0             0     float     sum      -1     5.70    0.00    0.00      0     5.54    0.00    0.00      0
        4096          1024     float     sum      -1    10.00    0.41    0.61      0     9.50    0.43    0.65      0
       65536         16384     float     sum      -1    12.00    5.46    8.19      0    11.50    5.70    8.55      0
     1048576        262144     float     sum      -1    40.00   26.21   39.32      0    39.00   26.89   40.33    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 16.04 
#
"""  # noqa: E501, W291
ITERATIONS: Final = """\
# nccl-tests version 2.17.6 nccl-headers=22800 nccl-library=22800
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 4096 maxBytes 1048576 step: 16(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0 unalign: 0
# Per-Iteration Report: CUDA event timing; i_* uses max over process rows 
#
# Using devices
#  Rank  0 Group  0 Pid   6899 on       node device  0 [0000:04:00] NVIDIA B200
#  Rank  1 Group  0 Pid   6900 on       node device  1 [0000:05:00] NVIDIA B200
#  Rank  2 Group  0 Pid   6901 on       node device  2 [0000:0b:00] NVIDIA B200
#  Rank  3 Group  0 Pid   6902 on       node device  3 [0000:0c:00] NVIDIA B200
#
#                                                              out-of-place (+ per-iteration)                                in-place (+ per-iteration)
#       size         count      type   redop    root     time   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%     time   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%           timestamp
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)     (us)     (us)      (%)     (us)  (GB/s)  (GB/s)             (us)     (us)     (us)      (%) %Y-%m-%d %H:%M:%S
        4096          2048  bfloat16     sum      -1    10.00    0.41    0.61       0     9.10    14.30    14.00     8.50     9.50    0.43    0.65       0     9.00    12.00    11.90     5.10  2026-01-05 10:11:12
       65536         32768  bfloat16     sum      -1    12.00    5.46    8.19       0    11.20    13.90    13.80     4.00    11.50    5.70    8.55       0    11.00    12.90    12.80     3.00  2026-01-05 10:11:13
     1048576        524288  bfloat16     sum      -1    40.00   26.21   39.32       0    39.00    42.50    42.40     1.50    39.00   26.89   40.33     N/A    38.50    40.10    40.00     1.10  2026-01-05 10:11:14
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 16.04 
#
# Collective test concluded: all_reduce_perf
#
"""  # noqa: E501, W291
STAMPED: Final = """\
[1,0]<stdout>:# Collective test starting: all_reduce_perf
[1,0]<stdout>:# nThread 1 nGpus 4 minBytes 4096 maxBytes 1048576 step: 16(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 0 graph: 4
[1,0]<stdout>:#
[1,0]<stdout>:#                                                              out-of-place                       in-place          
[1,0]<stdout>:#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong           timestamp
[1,0]<stdout>:#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         %Y-%m-%d %H:%M:%S
[1,0]<stdout>:        4096          2048      half     sum      -1    10.00    0.41    0.61     N/A     9.50    0.43    0.65     N/A  2026-01-05 10:11:12
[1,0]<stdout>:       65536         32768      half     sum      -1    12.00    5.46    8.19     N/A    11.50    5.70    8.55     N/A  2026-01-05 10:11:13
[1,0]<stdout>:     1048576        524288      half     sum      -1    40.00   26.21   39.32     N/A    39.00   26.89   40.33     N/A  2026-01-05 10:11:14
[1,0]<stdout>:# Out of bounds values : 0 OK
[1,0]<stdout>:# Avg bus bandwidth    : 16.04 
"""  # noqa: E501, W291
HALF_ROWS: Final = """\
# nThread 1 nGpus 4 minBytes 4096 maxBytes 1048576 step: 16(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#                                                              out-of-place                       in-place          
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       
        4096          1024     float     sum      -1                                    10.00    0.41    0.61      0
       65536         16384     float     sum      -1                                    12.00    5.46    8.19      0
     1048576        262144     float     sum      -1                                    40.00   26.21   39.32      0
# Out of bounds values : 0 OK
"""  # noqa: E501, W291
WRONG: Final = """\
# nThread 1 nGpus 2 minBytes 4096 maxBytes 65536 step: 16(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
# Reducing maxBytes to 65536 due to memory limitation
box:1:2 [0] misc/socket.cc:1 NCCL WARN socketProgress: Connection closed by remote peer \x1b[31m
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        4096          1024     float     sum      -1    10.00    0.41    0.41      0     9.50    0.43    0.43      0
       16384          4096     float     sum      -1[0] box:1:2 [0] NCCL INFO 16384 Bytes -> Algo 0
       65536         16384     float     sum      -1    12.00    5.46    5.46     25    11.50    5.70    5.70     25
# Out of bounds values : 50 FAILED
# Avg bus bandwidth    : 3.0 FAILED
"""  # noqa: E501
LAYOUTS: Final = {
    "early": EARLY, "error": ERROR, "root": ROOT, "iterations": ITERATIONS, "stamped": STAMPED, "half_rows": HALF_ROWS,
}  # fmt: skip
