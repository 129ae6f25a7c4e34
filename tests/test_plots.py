"""What all figures share."""

from denoised_mdp.analysis.plots import METHODS, PALETTE, colors_of


def test_a_method_has_one_color_whatever_it_is_compared_with():
    blue, red = PALETTE[METHODS.index("2b")], PALETTE[METHODS.index("dreamer")]
    assert colors_of(["dreamer", "2b"]) == {"dreamer": red, "2b": blue}
    assert colors_of(["a task · dreamer · sac", "a task · 2b"]) == {"a task · dreamer · sac": red, "a task · 2b": blue}
    own = PALETTE[len(METHODS) :]
    assert colors_of(["runs/2b_old", "dreamer"])["runs/2b_old"] == own[0]  # another name: of no method
    assert colors_of(["walker · 2b", "cheetah · 2b"]) == {"walker · 2b": blue, "cheetah · 2b": own[0]}


def test_two_items_with_one_method_differ_and_its_own_name_has_its_color():
    colors = colors_of(["2b · beta=0.5", "2b", "mine", "mine"])
    assert colors["2b"] == PALETTE[METHODS.index("2b")]
    assert len(set(colors.values())) == len(colors) == 3


def test_colors_repeat_only_where_there_are_more_items_than_colors():
    names = [*METHODS, *map(str, range(len(PALETTE)))]
    colors = list(colors_of(names).values())
    assert len(set(colors[: len(PALETTE)])) == len(PALETTE) and set(colors) == set(PALETTE)
