"""Options of the commands that use models: `padir translate`, `score`, `list` and `serve`."""

from __future__ import annotations

from padir.cli.options.shared import decoding_options, model_option, settings_option, step_option, writer_option
from padir.cli.parser import Parser, setting


def translate_options(parser: Parser) -> None:
    """Translate sentences or the lines of a file, one line out for each.

    A model that can refine refines; an option that only one mode reads chooses that mode. On an idle Intel Xeon, the
    model that comes with padir refines 1,990 sentences of Tatoeba in 16.7 s (48.7 BLEU). From left to right (--beam 1)
    it takes 2.9 s (50.1 BLEU).

    padir translate --trace "Wo ist der Bahnhof?"
    """
    about = "sentences to translate (default: standard input; a terminal gets a prompt)"
    parser.add_argument("texts", nargs="*", metavar="TEXT", help=about)
    model_option(parser)
    step_option(parser)
    writer_option(parser)
    parser.add_argument("--input", metavar="FILE", help="file to translate, plain or .gz")
    parser.add_argument("--output", metavar="FILE", help="file of translations (default: standard output)")
    about = "write each translation as a line of JSON: source, text, score, length, passes, hypotheses, truncated"
    parser.add_argument("--jsonl", action="store_true", help=about)
    parser.add_argument("--split", action="store_true", help="translate each sentence of a line by itself")
    about = "link the words of both sides in JSON: 0-0 1-2, source and target words from 0"
    parser.add_argument("--align", action="store_true", help=about)
    about = "file of terms, SOURCE tab TARGET in each line: where the source stands, the target must stand"
    parser.add_argument("--terms", metavar="FILE", help=about)
    about = "text of every translation, with gaps to write: ___ of any length, __3__ of three tokens"
    parser.add_argument("--template", metavar="TEXT", help=about)
    parser.add_argument("--trace", action="store_true", help="show every refinement step on stderr")
    parser.add_argument("--html", metavar="FILE", help="write a page with every step of the first 1,000 lines")
    decoding_options(parser)


def score_options(parser: Parser) -> None:
    """Compute log-probabilities of given translations.

    padir score --model runs/toy --input de.txt --target en.txt
    """
    parser.add_argument("--model", required=True, metavar="DIR", help="a model from `padir train`")
    step_option(parser)
    parser.add_argument("--input", required=True, metavar="FILE", help="sources, one sentence a line")
    parser.add_argument("--target", required=True, metavar="FILE", help="translations of the sources")
    setting(parser, "padir.translator:Translator.score", "batch_size", "pairs scored at once")
    output = "file for each pair's log-probability, tokens and mean (default: standard output)"
    parser.add_argument("--output", metavar="FILE", help=output)


def list_options(parser: Parser) -> None:
    """List the configurations, models, strategies and corpora that come with padir.

    padir list strategies
    """
    kinds = ("configs", "models", "strategies", "tasks")
    parser.add_argument("kind", nargs="?", choices=kinds, help="what to list (all)")


def serve_options(parser: Parser) -> None:
    """Serve a model over HTTP, with a page that shows the refinement steps.

    Serves POST /translate, GET /health, /metrics and /openapi.json, and a page at / (needs the extra serve). Decoding
    options are the defaults of all requests. A request may set others (docs/serve.md).

    padir serve --port 8000
    """
    model_option(parser)
    step_option(parser)
    writer_option(parser)
    about = "address to listen at (127.0.0.1: reachable from this machine only)"
    parser.add_argument("--host", default="127.0.0.1", help=about)
    parser.add_argument("--port", type=int, default=8000, help="port to listen at; 0 takes a free one (8000)")
    limits = {
        "max_body": "largest body of a request, in bytes",
        "max_sentences": "maximum number of sentences in a request",
        "max_characters": "maximum number of characters in a sentence",
        "max_steps": "largest num_steps of a request",
        "max_lengths": "largest num_lengths (or prefix_beam) and n_best of a request",
        "max_queue": "maximum number of sentences in the queue, of all clients; a single client gets half of them",
        "timeout": "seconds that a request may take, without the time for compiling",
    }
    engine = {"warm_up": "at start, compile for sources up to this number of tokens"}
    names = {
        "allowed_hosts": "host names under which clients reach the server, beside --host and localhost",
        "allowed_origins": "origins of web pages that may read answers, such as https://mine.example, or *",
    }
    settings_option(
        parser, {"serve.messages:Limits": limits, "serve.engine:Engine": engine, "serve.server:serve": names}
    )
    decoding_options(parser, without=("n_best",))
