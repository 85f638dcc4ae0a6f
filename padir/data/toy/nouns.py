"""The nouns, adjectives and determiners of `toy_de_en` and how they are declined.

Each German word has one English meaning. The tables are text, so that a reader can check them; an entry is

    noun        German:gender:plural=english[:irregular plural]     gender m, f or n; m* is a weak noun (den Jungen)
    adjective   German[:stem before an ending]=english

and `british~american` is a word that differs between the two varieties of English.
"""

from __future__ import annotations

import dataclasses

CASES = ("nominative", "accusative", "dative")
SINGULAR, PLURAL = 0, 1


def variety(english: str, american: bool) -> str:
    """One side of `british~american`, or the text itself where the two agree."""
    return english.split("~")[american] if "~" in english else english


def with_s(word: str) -> str:
    """The plural of a noun and the third person of a verb: watch/watches, baby/babies, book/books."""
    if word.endswith(("s", "sh", "ch", "x", "z", "o")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


@dataclasses.dataclass(frozen=True, eq=False)
class Noun:
    """A German noun and its English meaning; verbs and adjectives select nouns by `kind`.

    `countable` is False for mass nouns (Milch), `name` is True for first names: neither has a plural.
    """

    singular: str
    gender: str
    plural: str
    english_singular: str
    english_plural: str
    kind: str
    weak: bool = False
    countable: bool = True
    name: bool = False

    def german(self, case: str, number: int) -> str:
        if number == SINGULAR:
            return self.plural if self.weak and case != "nominative" else self.singular
        return self.plural + "n" if case == "dative" and self.plural[-1] not in "ns" else self.plural

    def english(self, number: int, american: bool) -> str:
        return variety(self.english_plural if number == PLURAL else self.english_singular, american)


_COUNTABLE = {
    "person": """
        Mann:m:Männer=man:men Frau:f:Frauen=woman:women Kind:n:Kinder=child:children Junge:m*:Jungen=boy
        Mädchen:n:Mädchen=girl Lehrer:m:Lehrer=teacher Lehrerin:f:Lehrerinnen=teacher Arzt:m:Ärzte=doctor
        Ärztin:f:Ärztinnen=doctor Student:m*:Studenten=student Freund:m:Freunde=friend Freundin:f:Freundinnen=friend
        Bruder:m:Brüder=brother Schwester:f:Schwestern=sister Sohn:m:Söhne=son Tochter:f:Töchter=daughter
        Onkel:m:Onkel=uncle Tante:f:Tanten=aunt Nachbar:m*:Nachbarn=neighbour~neighbor
        Nachbarin:f:Nachbarinnen=neighbour~neighbor Kollege:m*:Kollegen=colleague
        Polizist:m*:Polizisten=policeman:policemen
        Koch:m:Köche=cook Bäcker:m:Bäcker=baker Bauer:m*:Bauern=farmer Maler:m:Maler=painter Dichter:m:Dichter=poet
        Richter:m:Richter=judge Sängerin:f:Sängerinnen=singer Gast:m:Gäste=guest König:m:Könige=king
        Königin:f:Königinnen=queen Fahrer:m:Fahrer=driver Anwalt:m:Anwälte=lawyer Ingenieur:m:Ingenieure=engineer
        Krankenschwester:f:Krankenschwestern=nurse Soldat:m*:Soldaten=soldier Kellner:m:Kellner=waiter
        Kellnerin:f:Kellnerinnen=waitress Großvater:m:Großväter=grandfather Großmutter:f:Großmütter=grandmother""",
    "animal": """
        Hund:m:Hunde=dog Katze:f:Katzen=cat Pferd:n:Pferde=horse Kuh:f:Kühe=cow Vogel:m:Vögel=bird
        Schwein:n:Schweine=pig Schaf:n:Schafe=sheep:sheep Ente:f:Enten=duck Bär:m*:Bären=bear Löwe:m*:Löwen=lion
        Elefant:m*:Elefanten=elephant Kaninchen:n:Kaninchen=rabbit Ziege:f:Ziegen=goat Affe:m*:Affen=monkey""",
    "fruit": """
        Apfel:m:Äpfel=apple Birne:f:Birnen=pear Orange:f:Orangen=orange Banane:f:Bananen=banana
        Kartoffel:f:Kartoffeln=potato Tomate:f:Tomaten=tomato Ei:n:Eier=egg Kirsche:f:Kirschen=cherry
        Zwiebel:f:Zwiebeln=onion Erdbeere:f:Erdbeeren=strawberry Zitrone:f:Zitronen=lemon""",
    "baked": """
        Kuchen:m:Kuchen=cake Keks:m:Kekse=biscuit~cookie Pizza:f:Pizzas=pizza Torte:f:Torten=tart
        Brötchen:n:Brötchen=roll""",
    "text": """
        Buch:n:Bücher=book Zeitung:f:Zeitungen=newspaper Roman:m:Romane=novel Geschichte:f:Geschichten=story
        Gedicht:n:Gedichte=poem Artikel:m:Artikel=article Zeitschrift:f:Zeitschriften=magazine""",
    "paper": """
        Brief:m:Briefe=letter Bericht:m:Berichte=report Vertrag:m:Verträge=contract
        Postkarte:f:Postkarten=postcard""",
    "clothing": """
        Hemd:n:Hemden=shirt Mantel:m:Mäntel=coat Jacke:f:Jacken=jacket Hut:m:Hüte=hat Kleid:n:Kleider=dress
        Rock:m:Röcke=skirt Schuh:m:Schuhe=shoe Pullover:m:Pullover=jumper~sweater Handschuh:m:Handschuhe=glove
        Mütze:f:Mützen=cap Turnschuh:m:Turnschuhe=trainer~sneaker""",
    "thing": """
        Tisch:m:Tische=table Stuhl:m:Stühle=chair Bett:n:Betten=bed Schlüssel:m:Schlüssel=key
        Glas:n:Gläser=glass Tasse:f:Tassen=cup Teller:m:Teller=plate Messer:n:Messer=knife:knives
        Gabel:f:Gabeln=fork Löffel:m:Löffel=spoon Bild:n:Bilder=picture Geschenk:n:Geschenke=present Ball:m:Bälle=ball
        Puppe:f:Puppen=doll Stift:m:Stifte=pen Spiegel:m:Spiegel=mirror Regenschirm:m:Regenschirme=umbrella
        Kerze:f:Kerzen=candle Blume:f:Blumen=flower Decke:f:Decken=blanket Ring:m:Ringe=ring
        Kinderwagen:m:Kinderwagen=pram~stroller""",
    "container": """
        Tasche:f:Taschen=bag Koffer:m:Koffer=suitcase Flasche:f:Flaschen=bottle Schrank:m:Schränke=wardrobe~closet
        Tür:f:Türen=door Fenster:n:Fenster=window Tor:n:Tore=gate Paket:n:Pakete=parcel~package""",
    "appliance": """
        Uhr:f:Uhren=clock Lampe:f:Lampen=lamp Computer:m:Computer=computer Telefon:n:Telefone=telephone
        Handy:n:Handys=mobile~cellphone Kamera:f:Kameras=camera Fernseher:m:Fernseher=television
        Taschenlampe:f:Taschenlampen=torch~flashlight""",
    "machine": """
        Aufzug:m:Aufzüge=lift~elevator Maschine:f:Maschinen=machine Motor:m:Motoren=engine""",
    "instrument": """
        Geige:f:Geigen=violin Gitarre:f:Gitarren=guitar Klavier:n:Klaviere=piano:pianos Flöte:f:Flöten=flute""",
    "vehicle": """
        Auto:n:Autos=car Fahrrad:n:Fahrräder=bicycle Lastwagen:m:Lastwagen=lorry~truck Motorrad:n:Motorräder=motorcycle
        Boot:n:Boote=boat Flugzeug:n:Flugzeuge=aeroplane~airplane""",
    "transport": """
        Bus:m:Busse=bus Zug:m:Züge=train Schiff:n:Schiffe=ship Straßenbahn:f:Straßenbahnen=tram~streetcar""",
    "dwelling": """
        Haus:n:Häuser=house Wohnung:f:Wohnungen=flat~apartment Laden:m:Läden=shop~store
        Schloss:n:Schlösser=castle""",
    "building": """
        Schule:f:Schulen=school Kirche:f:Kirchen=church Brücke:f:Brücken=bridge Museum:n:Museen=museum
        Turm:m:Türme=tower Fabrik:f:Fabriken=factory Hotel:n:Hotels=hotel""",
    "room": """
        Zimmer:n:Zimmer=room Küche:f:Küchen=kitchen Büro:n:Büros=office Keller:m:Keller=cellar~basement""",
}
_MASS = {
    "food": "Brot:n=bread Käse:m=cheese Reis:m=rice Fleisch:n=meat Honig:m=honey Schokolade:f=chocolate",
    "drink": "Wasser:n=water Milch:f=milk Kaffee:m=coffee Tee:m=tea Wein:m=wine Bier:n=beer Saft:m=juice",
}
_NAMES = "Anna:f Maria:f Julia:f Laura:f Peter:m Thomas:m Paul:m Felix:m"


def _plural(english: str) -> str:
    return "~".join(with_s(word) for word in english.split("~"))


def _nouns() -> tuple[Noun, ...]:
    nouns = []
    for kind, table in _COUNTABLE.items():
        for entry in table.split():
            german, english = entry.split("=")
            singular, gender, plural = german.split(":")
            english, _, irregular = english.partition(":")
            weak = gender.endswith("*")
            nouns.append(Noun(singular, gender[0], plural, english, irregular or _plural(english), kind, weak))
    for kind, table in _MASS.items():
        for entry in table.split():
            german, english = entry.split("=")
            singular, gender = german.split(":")
            nouns.append(Noun(singular, gender, "", english, "", kind, countable=False))
    for entry in _NAMES.split():
        name, gender = entry.split(":")
        nouns.append(Noun(name, gender, "", name, "", "person", countable=False, name=True))
    return tuple(nouns)


NOUNS = _nouns()


@dataclasses.dataclass(frozen=True, eq=False)
class Adjective:
    """`stem` takes the endings (teuer, teur-); `kinds` are the kinds of nouns that it can describe."""

    german: str
    stem: str
    english: str
    kinds: frozenset[str]


_OBJECTS = "text paper clothing thing container appliance machine instrument vehicle dwelling building room"
_ADJECTIVES = {
    "person": """jung=young klug=clever freundlich=friendly müde:müd=tired krank=ill~sick glücklich=happy traurig=sad
        reich=rich arm=poor berühmt=famous fleißig=hardworking faul=lazy nervös=nervous hungrig=hungry höflich=polite
        ruhig=calm stolz=proud""",
    "animal": "jung=young müde:müd=tired hungrig=hungry dick=fat wild=wild braun=brown",
    "fruit baked": "frisch=fresh süß=sweet groß=big klein=small gut=good",
    "food drink": "frisch=fresh gut=good teuer:teur=expensive billig=cheap",
    "text paper": "lang=long kurz=short wichtig=important interessant=interesting langweilig=boring",
    "clothing thing container": """rot=red blau=blue grün=green gelb=yellow schwarz=black weiß=white
        schmutzig=dirty""",
    "appliance machine instrument vehicle transport": "modern=modern kaputt=broken",
    "machine vehicle transport": "laut=loud",
    "dwelling building room": "dunkel:dunkl=dark leer=empty sauber=clean",
    "person animal transport " + _OBJECTS: "alt=old schön=beautiful",
    "animal transport " + _OBJECTS: "groß=big klein=small",
    _OBJECTS: "neu=new teuer:teur=expensive billig=cheap",
}


def _adjectives() -> tuple[Adjective, ...]:
    kinds: dict[str, set[str]] = {}
    for group, table in _ADJECTIVES.items():
        for entry in table.split():
            kinds.setdefault(entry, set()).update(group.split())
    adjectives = []
    for entry, found in kinds.items():
        german, english = entry.split("=")
        german, _, stem = german.partition(":")
        adjectives.append(Adjective(german, stem or german, english, frozenset(found)))
    return tuple(adjectives)


ADJECTIVES = _adjectives()
# Adjectives of states that come and go. For other adjectives (alt, groß), adverbs of time make little sense.
STATES = frozenset(
    """müde krank glücklich traurig nervös hungrig ruhig höflich faul fleißig
    schmutzig kaputt laut dunkel leer sauber""".split()
)
ADJECTIVE_ENDINGS = ("e", "er", "es", "en", "em")


@dataclasses.dataclass(frozen=True, eq=False)
class Determiner:
    """A determiner: the beginning of a noun phrase, and the endings of its adjective.

    `declension` is one of
      der: the definite article;
      dieser: strong endings;
      viele: strong endings, also on the adjective that follows;
      ein: strong endings, except where the adjective takes the ending;
      fixed: no endings (zwei, or no determiner at all).
    """

    stem: str
    english: tuple[str, str]
    declension: str
    numbers: tuple[int, ...]  # grammatical numbers of the nouns that it can precede

    # The columns are masculine, neuter, feminine, plural.
    _ARTICLE = {
        "nominative": ("der", "das", "die", "die"),
        "accusative": ("den", "das", "die", "die"),
        "dative": ("dem", "dem", "der", "den"),
    }
    _STRONG = {
        "nominative": ("er", "es", "e", "e"),
        "accusative": ("en", "es", "e", "e"),
        "dative": ("em", "em", "er", "en"),
    }

    @staticmethod
    def _column(gender: str, number: int) -> int:
        return 3 if number == PLURAL else "mnf".index(gender)

    def german(self, case: str, gender: str, number: int) -> str:
        column = self._column(gender, number)
        if self.declension == "der":
            return self._ARTICLE[case][column]
        if self.declension == "fixed":
            return self.stem
        if self.declension == "ein" and case != "dative" and (column == 1 or (column == 0 and case == "nominative")):
            return self.stem  # ein Mann, ein Kind: the ending moves to the adjective
        return self.stem + self._STRONG[case][column]

    def adjective_ending(self, case: str, gender: str, number: int) -> str:
        column = self._column(gender, number)
        strong = self._STRONG[case][column]
        if self.declension in ("fixed", "viele"):
            return strong
        if self.declension == "ein" and number == SINGULAR and case != "dative":
            return strong
        if number == PLURAL or case == "dative" or (case == "accusative" and column == 0):
            return "en"
        return "e"


DEFINITE = Determiner("", ("the", "the"), "der", (SINGULAR, PLURAL))
INDEFINITE = Determiner("ein", ("a", ""), "ein", (SINGULAR,))
BARE = Determiner("", ("", ""), "fixed", (SINGULAR, PLURAL))  # singular with names and mass nouns only
THIS = Determiner("dies", ("this", "these"), "dieser", (SINGULAR, PLURAL))
EVERY = Determiner("jed", ("every", ""), "dieser", (SINGULAR,))
POSSESSIVES = tuple(
    Determiner(german, (english, english), "ein", (SINGULAR, PLURAL))
    for german, english in (("mein", "my"), ("dein", "your"), ("sein", "his"), ("unser", "our"))
)
QUANTIFIERS = tuple(
    Determiner(german, ("", english), "viele", (PLURAL,)) for german, english in (("viel", "many"), ("einig", "some"))
)
NUMBERS = dict(
    zip(
        "zwei drei vier fünf sechs sieben acht neun zehn elf zwölf fünfzehn zwanzig".split(),
        "two three four five six seven eight nine ten eleven twelve fifteen twenty".split(),
        strict=True,
    )
)
NUMERALS = tuple(Determiner(german, ("", english), "fixed", (PLURAL,)) for german, english in NUMBERS.items())
DETERMINERS = (DEFINITE, INDEFINITE, BARE, THIS, EVERY, *POSSESSIVES, *QUANTIFIERS, *NUMERALS)
