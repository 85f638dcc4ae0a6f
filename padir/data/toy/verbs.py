"""The verbs of `toy_de_en` and how they are conjugated.

Each German verb has one English meaning. An entry is a line of

    German[/du form/er form] participle = English[/past] [+particle] [@preposition] : objects < subjects

where `prefix|verb` is separable, `*participle` takes sein, objects and subjects are kinds of nouns (by default the
subject is a person), and `british~american` is a form that differs between the two varieties of English.
"""

from __future__ import annotations

import dataclasses
import functools

from padir.data.toy.nouns import with_s

THIRD_SINGULAR, THIRD_PLURAL = 2, 5  # persons are numbered ich 0, du 1, er 2, wir 3, ihr 4, sie 5


def _past(word: str) -> str:
    if word.endswith("e"):
        return word + "d"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ied"
    return word + "ed"


_PRESENT = {
    "haben": ("habe", "hast", "hat", "haben", "habt", "haben"),
    "sein": ("bin", "bist", "ist", "sind", "seid", "sind"),
    "war": ("war", "warst", "war", "waren", "wart", "waren"),
    "future": ("werde", "wirst", "wird", "werden", "werdet", "werden"),
    "können": ("kann", "kannst", "kann", "können", "könnt", "können"),
    "wollen": ("will", "willst", "will", "wollen", "wollt", "wollen"),
    "sollen": ("soll", "sollst", "soll", "sollen", "sollt", "sollen"),
    "müssen": ("muss", "musst", "muss", "müssen", "müsst", "müssen"),
    "dürfen": ("darf", "darfst", "darf", "dürfen", "dürft", "dürfen"),
}
MODALS = ("können", "wollen", "sollen", "müssen", "dürfen")
TENSES = ("present", "perfect", "future", *MODALS)


@dataclasses.dataclass(frozen=True, eq=False)
class Verb:
    """A verb in one frame; a verb of two frames (essen; etwas essen) is two `Verb` objects.

    Attributes:
      frame: intransitive (place or manner may follow), bare (they may not), home (in Berlin wohnen), goal (nach Berlin
        fahren), transitive (one object of any case), ditransitive, that (with a clause), copula (with an adjective).
      case, preposition: of the German object; conjunction: of the clause that follows.
      particle, english_preposition: as in `pick up` and `look at`: picks it up, but looks at it.
      objects, subjects: the kinds of nouns that make sense.
    """

    infinitive: str
    prefix: str
    forms: tuple[str, ...]
    participle: str
    auxiliary: str
    english: str
    past: str
    particle: str
    english_preposition: str
    frame: str
    case: str = "accusative"
    preposition: str = ""
    objects: frozenset[str] = frozenset()
    subjects: frozenset[str] = frozenset({"person"})
    conjunction: str = ""

    def german(self, tense: str, person: int) -> tuple[str, str]:
        """The finite verb and what closes the clause: (kauft, ein), (hat, eingekauft), (will, einkaufen)."""
        if self.frame == "copula":
            return _PRESENT["war" if tense == "perfect" else "sein"][person], ""
        if tense == "present":
            return self.forms[person], self.prefix
        if tense == "perfect":
            return _PRESENT[self.auxiliary][person], self.participle
        return _PRESENT[tense][person], self.prefix + self.infinitive

    def german_last(self, tense: str, person: int) -> str:
        """The verbs at the end of a subordinate clause: einkauft, eingekauft hat, einkaufen will."""
        finite, closing = self.german(tense, person)
        if not closing:
            return finite
        return closing + finite if tense == "present" else f"{closing} {finite}"

    @functools.cached_property
    def third(self) -> str:
        return "has" if self.english == "have" else with_s(self.english)


def _present(infinitive: str, second: str, third: str) -> tuple[str, ...]:
    """The six forms of the present; the second and third person singular are given where the vowel changes."""
    stem = infinitive[:-2] if infinitive.endswith("en") else infinitive[:-1]
    e = "e" if stem.endswith(("t", "d", "chn", "ffn")) else ""
    s = "" if stem.endswith(("s", "z", "ß", "ss")) else "s"
    return (stem + "e", second or f"{stem}{e}{s}t", third or f"{stem}{e}t", infinitive, f"{stem}{e}t", infinitive)


_GOODS = "fruit baked food drink text clothing thing container instrument appliance vehicle"
# Keys: the frame, then the object's case and preposition, or the conjunction of the clause that follows.
_VERBS = {
    "intransitive": """
        schlafen/schläfst/schläft geschlafen = sleep/slept < person animal
        arbeiten gearbeitet = work
        singen gesungen = sing/sang
        tanzen getanzt = dance
        lachen gelacht = laugh
        weinen geweint = cry
        lernen gelernt = study
        spielen gespielt = play < person animal
        kochen gekocht = cook
        essen/isst/isst gegessen = eat/ate < person animal
        lesen/liest/liest gelesen = read/read
        warten gewartet = wait
        frühstücken gefrühstückt = have/had +breakfast
        ein|kaufen eingekauft = shop/shopped
        fern|sehen/siehst/sieht ferngesehen = watch +television""",
    "bare": """
        auf|wachen *aufgewacht = wake/woke +up < person animal
        ein|schlafen/schläfst/schläft *eingeschlafen = fall/fell +asleep < person animal
        auf|stehen *aufgestanden = get/got +up
        an|kommen *angekommen = arrive < person transport
        zurück|kommen *zurückgekommen = come/came +back < person transport
        ab|fahren/fährst/fährt *abgefahren = depart < transport
        weg|gehen *weggegangen = leave/left
        aus|gehen *ausgegangen = go/went +out""",
    "home": "wohnen gewohnt = live",
    "goal": """
        gehen *gegangen = go/went
        fahren/fährst/fährt *gefahren = drive/drove
        reisen *gereist = travel/travelled~traveled
        laufen/läufst/läuft *gelaufen = run/ran
        zurück|kehren *zurückgekehrt = return""",
    "transitive accusative": f"""
        kaufen gekauft = buy/bought : {_GOODS}
        verkaufen verkauft = sell/sold : {_GOODS} dwelling
        finden gefunden = find/found : clothing thing appliance paper
        verlieren verloren = lose/lost : clothing thing paper
        sehen/siehst/sieht gesehen = see/saw : person animal transport dwelling building < person animal
        hören gehört = hear/heard : person animal instrument machine transport < person animal
        treffen/triffst/trifft getroffen = meet/met : person
        lieben geliebt = love : person animal
        besuchen besucht = visit : person dwelling building
        essen/isst/isst gegessen = eat/ate : fruit baked food
        trinken getrunken = drink/drank : drink
        backen gebacken = bake : baked
        lesen/liest/liest gelesen = read/read : text paper
        schreiben geschrieben = write/wrote : text paper
        tragen/trägst/trägt getragen = wear/wore : clothing
        waschen/wäschst/wäscht gewaschen = wash : clothing vehicle fruit
        reparieren repariert = repair : appliance machine vehicle instrument
        bauen gebaut = build/built : dwelling building machine
        malen gemalt = paint : animal dwelling building room
        fotografieren fotografiert = photograph : person animal dwelling building vehicle
        füttern gefüttert = feed/fed : animal
        mieten gemietet = rent : vehicle dwelling room
        putzen geputzt = clean : room
        brauchen gebraucht = need : clothing thing appliance machine vehicle
        vergessen/vergisst/vergisst vergessen = forget/forgot : clothing thing paper
        zeichnen gezeichnet = draw/drew : person animal dwelling building
        verstecken versteckt = hide/hid : thing paper baked
        stehlen/stiehlst/stiehlt gestohlen = steal/stole : appliance vehicle instrument thing
        bestellen bestellt = order : fruit baked food drink
        spielen gespielt = play : instrument
        unterschreiben unterschrieben = sign : paper
        übersetzen übersetzt = translate : text paper
        verstehen verstanden = understand/understood : person text
        beschreiben beschrieben = describe : person animal dwelling building
        begrüßen begrüßt = greet : person
        retten gerettet = save : person animal
        umarmen umarmt = hug/hugged : person
        beobachten beobachtet = watch : person animal < person animal
        fangen/fängst/fängt gefangen = catch/caught : animal < person animal
        öffnen geöffnet = open : container
        ab|holen abgeholt = pick +up : person paper
        an|rufen angerufen = call : person
        ein|laden/lädst/lädt eingeladen = invite : person
        zu|machen zugemacht = close : container
        mit|bringen mitgebracht = bring/brought : fruit baked food drink
        an|ziehen angezogen = put/put +on : clothing
        aus|ziehen ausgezogen = take/took +off : clothing
        an|schauen angeschaut = look @at : animal dwelling building vehicle
        auf|räumen aufgeräumt = tidy +up : room
        weg|werfen/wirfst/wirft weggeworfen = throw/threw +away : paper clothing fruit
        zurück|geben/gibst/gibt zurückgegeben = return : text instrument appliance
        aus|leihen ausgeliehen = borrow : text instrument vehicle
        vor|bereiten vorbereitet = prepare : paper
        ein|packen eingepackt = pack : clothing thing text
        aus|machen ausgemacht = turn +off : appliance machine""",
    "transitive dative": """
        helfen/hilfst/hilft geholfen = help : person animal
        danken gedankt = thank : person
        folgen *gefolgt = follow : person animal vehicle < person animal
        antworten geantwortet = answer : person
        gratulieren gratuliert = congratulate : person
        vertrauen vertraut = trust : person
        zu|hören zugehört = listen @to : person
        zu|schauen zugeschaut = watch : person""",
    "transitive accusative auf": "warten gewartet = wait @for : person transport",
    "transitive accusative über": "lachen gelacht = laugh @about : person text",
    "transitive dative mit": """
        sprechen/sprichst/spricht gesprochen = talk @to : person
        spielen gespielt = play @with : animal
        tanzen getanzt = dance @with : person""",
    "transitive dative nach": "suchen gesucht = look @for : person animal clothing thing",
    "ditransitive": """
        geben/gibst/gibt gegeben = give/gave : text paper thing fruit instrument
        zeigen gezeigt = show : text paper thing clothing dwelling building
        schicken geschickt = send/sent : text paper thing
        bringen gebracht = bring/brought : fruit baked drink thing
        leihen geliehen = lend/lent : text instrument vehicle clothing
        an|bieten angeboten = offer : fruit baked food drink
        vor|lesen/liest/liest vorgelesen = read/read : text paper""",
    "that dass": """
        sagen gesagt = say/said
        glauben geglaubt = believe
        hoffen gehofft = hope
        denken gedacht = think/thought""",
    "that ob": "fragen gefragt = ask",
    "copula": """
        sein *gewesen = be/was < person animal text paper clothing appliance machine vehicle dwelling building room""",
}


def _verb(line: str, frame: str, case: str, preposition: str, conjunction: str) -> Verb:
    line, _, subjects = line.partition(" < ")
    line, _, objects = line.partition(" : ")
    german, _, english = line.partition(" = ")
    forms, participle = german.split()
    prefix, _, forms = forms.rpartition("|")
    infinitive, second, third = forms.split("/") if "/" in forms else (forms, "", "")
    word, *rest = english.split()
    base, _, past = word.partition("/")
    return Verb(
        infinitive=infinitive,
        prefix=prefix,
        forms=_present(infinitive, second, third),
        participle=participle.removeprefix("*"),
        auxiliary="sein" if participle.startswith("*") else "haben",
        english=base,
        past=past or _past(base),
        particle=" ".join(word[1:] for word in rest if word.startswith("+")),
        english_preposition=" ".join(word[1:] for word in rest if word.startswith("@")),
        frame=frame,
        case=case,
        preposition=preposition,
        objects=frozenset(objects.split()),
        subjects=frozenset(subjects.split() or ["person"]),
        conjunction=conjunction,
    )


def _verbs() -> tuple[Verb, ...]:
    verbs = []
    for key, table in _VERBS.items():
        frame, *rest = key.split()
        case = rest[0] if frame == "transitive" else "accusative"
        preposition = rest[1] if frame == "transitive" and len(rest) > 1 else ""
        conjunction = rest[0] if frame == "that" else ""
        verbs += [_verb(line, frame, case, preposition, conjunction) for line in table.strip().splitlines()]
    return tuple(verbs)


VERBS = _verbs()
