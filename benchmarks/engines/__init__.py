"""What is compared: one small file for each engine, with the same class in it.

    REQUIRES                          the module that must be there
    Engine(model, threads, context)   loads a GGUF file
    .version                          what the table calls it
    .decode(ids, n) -> seconds        for `n` greedy tokens after the prompt `ids`; reading the
                                      prompt is not timed, and happens only where it has to
    .prompt(ids) -> seconds           to read `ids`, from nothing, and to choose a token
    .facts() -> dict                  what else it knows; hotloop: how many bytes a token reads

A file here imports its engine and the standard library only: it runs in that engine's interpreter,
which need not have hotloop.
"""
