import math

from hypothesis import given
from hypothesis import strategies as st

from knee.report.chart import Series, chart

CURVE = Series(name="64 sequences", points=((10.0, 60.0), (14.0, 140.0), (16.0, 3150.0), (18.0, None)))


def test_a_known_curve() -> None:
    drawn = chart([CURVE], x_label="req/s", y_label="TTFT p95, ms", bound=1000.0, width=33, height=7)
    assert drawn.splitlines() == [
        "TTFT p95, ms",
        "4.64e+03 |                                ^",
        "         |                        o",
        "         |- - - - - - - - - - - - - - - - -",
        "     464 |",
        "         |",
        "         |                o",
        "    46.4 |o",
        "         +---------------------------------",
        "          10                             18",
        "          req/s    o 64 sequences   - bound 1000   ^ unbounded",
    ]


def test_the_knee_is_drawn_on_the_axis() -> None:
    drawn = chart([CURVE], x_label="req/s", y_label="ms", knee=(12.0, 15.0), width=33, height=7)
    axis, ends, foot = drawn.splitlines()[-3:]
    assert axis == "         +--------[===========]------------"
    assert ends == "          10                             18"
    assert foot.endswith("o 64 sequences   [=] knee   ^ unbounded")


@given(st.floats(0.1, 100), st.floats(0, 50), st.integers(8, 90))
def test_an_axis_with_a_knee_has_its_width(low: float, more: float, width: int) -> None:
    points = ((10.0, 5.0), (40.0, 50.0))
    drawn = chart(
        [Series(name="s", points=points)], x_label="x", y_label="y", knee=(low, low + more), width=width
    )
    axis = drawn.splitlines()[-3][10:]
    assert len(axis) == width
    assert axis.count("[") == axis.count("]") == 1 - axis.count("#")


def test_nothing_finite_is_said() -> None:
    assert "no finite" in chart([Series(name="a", points=((1.0, None),))], x_label="x", y_label="y")


values = st.one_of(st.none(), st.floats(1e-3, 1e7))


@given(
    st.lists(st.tuples(st.floats(0.01, 1e4), values), min_size=1, max_size=30),
    st.integers(8, 90),
    st.integers(3, 30),
)
def test_every_point_is_drawn_inside(
    points: list[tuple[float, float | None]], width: int, height: int
) -> None:
    series = Series(name="s", points=tuple(points))
    drawn = chart([series], x_label="x", y_label="y", width=width, height=height)
    if all(y is None for _, y in points):
        return
    rows = [line[10:] for line in drawn.splitlines()[1 : height + 1]]
    assert len(rows) == height
    assert all(len(row) <= width for row in rows)
    marks = sum(row.count("o") + row.count("^") for row in rows)
    assert 1 <= marks <= len(points)


@given(st.lists(st.floats(0.01, 1e6), min_size=2, max_size=2, unique=True))
def test_higher_is_drawn_higher(ys: list[float]) -> None:
    low, high = sorted(ys)
    drawn = chart(
        [Series(name="s", points=((0.0, low), (1.0, high)))], x_label="x", y_label="y", width=10, height=20
    )
    rows = [line[10:] for line in drawn.splitlines()[1:21]]
    left = next(i for i, row in enumerate(rows) if row[:1] == "o")
    right = next(i for i, row in enumerate(rows) if row[9:10] == "o")
    assert right <= left
    assert left - right <= 19
    assert math.isfinite(low)
