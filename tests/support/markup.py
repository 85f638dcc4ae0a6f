"""Whether tags nest, by the standard library's parser."""

import html.parser


class Parser(html.parser.HTMLParser):
    """The standard library's parser: tags nest if each closing tag closes the newest open one."""

    def __init__(self, text):
        super().__init__()
        self.open, self.fits = [], True
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.open += [tag] if tag not in ("br", "hr") else []

    def handle_endtag(self, tag):
        self.fits &= bool(self.open) and self.open.pop() == tag


def well_formed(text):
    parser = Parser(text)
    return parser.fits and not parser.open
