"""Tells languages apart by their most frequent words."""

from __future__ import annotations

import re

from padir.text.placing import UNSPACED

# Frequent words without which a text in the language is rare, after its code; for Chinese and Japanese, characters.
_FREQUENT = """
en the of and to in a is an on at as that for it you with this are not be was by have from your what do can my we he she
de der die das und in ist nicht ein eine den mit von zu auf für sie ich wir er es dem des sich auch wird kann oder im
fr le la les a des et est une un pour dans que qui pas vous sur avec il du au ce cette je sont elle par ne nous
es el la los las de y es una un para que en no con por del se su lo al está más como este esta yo
it il la di in e è che non un una per con del della i gli le si da sono nel questo come più ha lo alla
pt o a os as e é uma um para que não em com do da no na se por dos das você ao está são mais foi
nl de het een in en is niet van voor met op dat te zijn ik je aan er wordt deze naar bij kan ook hij als
sv och att det är en som inte för på den med av till jag har om ett kan du var från de han eller
da og at det er en som ikke for på den med af til jeg har om et kan du var fra de han eller der
no og å det er en som ikke for på den med av til jeg har om et kan du var fra de han eller
fi ja on ei se että hän oli mutta joka myös kun tai ovat voi minä sen tämä olen ole kuin
et ja on ei see et ta oli aga mis ka kui või ma selle seda olen ole kas oma siis
cs je se na v že to s z do o pro jsem jako nebo který není by si ale jsou tento
sk je sa na v že to s z do o pre som ako alebo ktorý nie by si ale sú tento
pl nie jest się na w że to z do i o jak dla czy lub który są ten przez od tego był
hu az és nem hogy egy ez meg volt de ha mint vagy csak ki el még lehet
ro și şi este nu în a la un o să de pe cu care pentru din că mai sau am sunt ai fi al ale lui
hr je i se na u da ne za su od s to kao koji ili nije bi sam ali iz što po
sl je se na v da ne za so od s to kot ki ali ni bi sem tudi iz pa po
lt ir yra į kad ne su iš tai kaip jis bet ar buvo per už jo
lv un ir uz ka nav ar no tas kā viņš bet vai bija par pie es
tr ve bir bu için da de ile değil çok ne var ben o olarak gibi daha olan mi mı
id yang dan di ini itu dengan untuk tidak dari dalam ke pada adalah saya akan atau
vi và của là không có được cho trong một các người này tôi đã với để
ru и в не на что я с он это как по к но из у за от для или вы так был
uk і в не на що я з він це як до та але у за від для або ви так був й
bg и в не на че да е се за от са по с но или как ще беше това ли
el και το να η του της με για δεν είναι που τα από ο στο την θα σε τη
ar في من على إلى أن هذا لا ما التي عن هو مع أو هذه كان لم
he את של לא על זה הוא אני עם כי או גם היא יש אם מה כל
fa در به از که این را با است برای آن یک نمی می تا یا بود
hi के है में की को और का से नहीं यह पर हैं कि एक इस ने
ko 수 이 그 및 는 있는 있습니다 합니다 또는 것 할 하는 않습니다 대한 입니다
zh 的 了 是 在 不 我 有 这 他 和 为 你 个 到 们 会 您 无 此 這 個 們 無 為 與
ja の は を に が で と た し て す ま る い な れ か
"""
_WORDS = {line.split()[0]: frozenset(line.split()[1:]) for line in _FREQUENT.strip().split("\n")}
LANGUAGES = frozenset(_WORDS)
_WORD = re.compile(rf"[{UNSPACED}]|[^\W\d_{UNSPACED}]+")
_READ = 500  # characters of a text that are read


def language_of(text: str) -> str:
    """The language to which most frequent words of a text belong; "" if there is none, or several.

    >>> language_of("Wo ist der Bahnhof?"), language_of("我们今天去了公园"), language_of("OK")
    ('de', 'zh', '')
    """
    found = _WORD.findall(text[:_READ].lower())
    counts = {language: sum(word in words for word in found) for language, words in _WORDS.items()}
    second, best = sorted(counts, key=counts.__getitem__)[-2:]
    return best if counts[best] > counts[second] else ""
