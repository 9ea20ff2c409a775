"""What llama.cpp's server can do at best: its batched decoding, without the server around it.

    python benchmarks/batched_llama_cpp.py model.gguf --clients 8 --prompt 128 --tokens 128

Every client has a prompt of its own, all are read and then decoded together, greedily, a token for
each sequence in one `llama_decode`. HTTP, scheduling and text come on top of that in a server, so
its tokens per second are an upper bound: `hotloop load` counts the same tokens on ours.
"""

import argparse
import ctypes
import time

import llama_cpp

BATCH = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()

    llama_cpp.llama_backend_init()
    silent = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
    llama_cpp.llama_log_set(silent, None)
    model = llama_cpp.llama_model_load_from_file(
        args.model.encode(), llama_cpp.llama_model_default_params()
    )
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = args.clients * (args.prompt + args.tokens + 8)
    params.n_batch = params.n_ubatch = BATCH
    params.n_seq_max = args.clients
    params.n_threads = params.n_threads_batch = args.threads
    context = llama_cpp.llama_init_from_model(model, params)
    greedy = llama_cpp.llama_sampler_init_greedy()
    batch = llama_cpp.llama_batch_init(BATCH, 0, 1)

    def step(entries: list[tuple[int, int, int, bool]]) -> None:
        """(token, position, sequence, whether its logits are wanted), at most BATCH of them."""
        batch.n_tokens = len(entries)
        for at, (token, position, sequence, wanted) in enumerate(entries):
            batch.token[at], batch.pos[at], batch.logits[at] = token, position, wanted
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, sequence
        status = llama_cpp.llama_decode(context, batch)
        assert status == 0, status

    def draw(at: int) -> int:
        return int(llama_cpp.llama_sampler_sample(greedy, context, at))

    started = time.perf_counter()
    last = []
    for sequence in range(args.clients):
        prompt = [(1000 * sequence + 37 * at) % 40_000 + 100 for at in range(args.prompt)]
        for start in range(0, args.prompt, BATCH):
            part = prompt[start : start + BATCH]
            step(
                [
                    (token, start + at, sequence, at == len(part) - 1)
                    for at, token in enumerate(part)
                ]
            )
        last.append(draw(len(part) - 1))
    read = time.perf_counter() - started
    decoding = time.perf_counter()
    for position in range(args.prompt, args.prompt + args.tokens - 1):
        step([(token, position, sequence, True) for sequence, token in enumerate(last)])
        last = [draw(at) for at in range(args.clients)]
    now = time.perf_counter()
    made = args.clients * args.tokens
    print(f"llama.cpp {llama_cpp.__version__}: {args.clients} sequences, {made} tokens")
    print(f"prompts: {args.clients * args.prompt / read:.0f} tok/s")
    print(f"decoding: {(made - args.clients) / (now - decoding):.1f} tok/s")
    print(f"both: {made / (now - started):.1f} generated tok/s")


if __name__ == "__main__":
    main()
