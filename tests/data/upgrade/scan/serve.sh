#!/bin/sh
docker run --device /dev/dri busybox
# vllm serve llama --task generate
vllm serve llama \
  --max-num-seqs 64 \
  --disable-log-requests \
  --max-num-seqs-per-team 3
other-tool --swap-space 3
python -m vllm.entrypoints.openai.api_server --preemption-mode swap --disable-cascade-attn
