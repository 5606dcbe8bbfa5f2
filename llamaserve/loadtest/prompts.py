"""Prompts for a server whose vocabulary nobody knows: common English words, each about one token. Pure.

Two prompts of one seed have different first words, or, when there are more prompts than words, different second ones: a
server with a prefix cache finds nothing in it that was not meant to be shared.
"""

from __future__ import annotations

import random

_WORD_LIST = """
    able about above across after again against air all almost along already also always among animal another answer
    appear area around art ask away back ball bank base beautiful became because become been before began behind being
    believe below best better between big bird black blue board boat body book both bottom box boy bring brought brown
    build building business call came car care carry case cat catch caught cause center central certain chance change
    check child children church city class clear close cold color come common complete control cook cool copy corner
    could country course cover cross cut dark day decide deep design did different direct distance doctor does dog done
    door down draw dream drive drop dry during each early earth east easy eat edge effect eight either else end energy
    engine enough enter even evening ever every example experience eye face fact fall family far farm fast father feel
    feet few field fight figure fill final find fine finger finish fire first fish five floor flow fly follow food foot
    force forest form forward found four free fresh friend from front full game garden gave general get girl give glass
    goes gold good great green ground group grow had hair half hand happen happy hard has have head hear heart heat
    heavy held help her here high hill him his history hold home hope horse hot hour house how human hundred ice idea
    image important inch include increase inside interest into iron island job join just keep kept key kind king knew
    know land language large last later law lay lead learn least leave left less letter level life light like line list
    listen little live local long look lost love low machine made main make man many map mark market matter may mean
    measure meet member men middle might mile milk million mind minute miss modern moment money month moon more morning
    most mother motion mountain move much music must name nation nature near need never new next night nine noise north
    note nothing notice now number object ocean off offer office often oil old once one only open order other our out
    outside over own page paint pair paper part party pass past path pattern pay peace people perhaps period person
    picture piece place plain plan plane plant play point poor position possible power present press pretty probable
    problem process produce program public pull purpose push put question quick quiet quite race rain raise range rather
    reach read ready real reason record red region remember rest result return rich ride right ring rise river road rock
    room root round rule run safe said sail salt same sand save say school science score sea season seat second section
    see seem self send sense sentence serve set seven several shape share sharp she ship shop short should shoulder show
    side sign silver simple since sing single sister sit six size skin sky sleep slow small snow social soft soil some
    son song soon sort sound source south space speak special speed spend spring square staff stand star start state
    station stay steel step still stone stop store story straight street strong student study such sudden sugar summer
    sun support sure surface system table take talk teach team tell temperature ten test than that their them then there
    these they thing think third this those though thought thousand three through time together told tone too took top
    total touch toward town track trade train travel tree trip true try turn two type under unit until upon use usual
    valley value various very view village visit voice wait walk wall want war warm was wash watch water wave way wear
    weather week weight well went were west what wheel when where which while white whole why wide wife wild will wind
    window winter wish with within without woman women wonder wood word work world would write written wrong year yellow
    yes yet you young your
    """

WORDS = tuple(_WORD_LIST.split())


def most_prompts(n_tokens: int) -> int:
    """Prompts of this length that differ as promised."""
    return len(WORDS) if n_tokens < 2 else len(WORDS) ** 2


def distinct_text(number: int, n_tokens: int, seed: int) -> str:
    """The prompt of this number, of ``n_tokens`` words; the same for the same three arguments."""
    openings = random.Random(f"openings {seed}").sample(WORDS, len(WORDS))
    round_, place = divmod(number, len(WORDS))
    # Prompts that share the first word are of different rounds, hence get different second words.
    opening = [openings[place], openings[(place + 1 + round_) % len(WORDS)]]
    rest = random.Random(f"prompt {seed} {number}").choices(WORDS, k=max(0, n_tokens - 2))
    return " ".join([*opening, *rest][:n_tokens])


def shared_text(n_tokens: int, seed: int) -> str:
    """The beginning that all prompts of a run share."""
    return " ".join(random.Random(f"shared {seed}").choices(WORDS, k=n_tokens))
