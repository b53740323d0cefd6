"""What follows from the facts: each row of the contract's table, and what must never follow from any of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idemproxy.core.fingerprint import FingerprintRules
from idemproxy.core.judge import (
    Forward,
    Refuse,
    Replay,
    Settlement,
    Step,
    TakeOver,
    Wait,
    after_answer,
    after_claim,
    after_loss,
)
from idemproxy.core.messages import Answer
from idemproxy.core.policy import ForwardKey, GlobalScope, HeaderKey, InFlight, OnUnknown, Policy, ReplayStatus
from idemproxy.core.problems import LOST, Code, Problem
from idemproxy.core.profiles import AGENT
from idemproxy.core.record import Claim, Completed, Expired, Found, Lease, RecordId, Running, Unknown

POLICY = Policy(
    keys=(HeaderKey("Idempotency-Key"),),
    key_required=False,
    key_max_length=255,
    key_format=None,
    scope="global",
    scope_from=GlobalScope(),
    rules=FingerprintRules(),
    ttl_seconds=60,
    lease_seconds=30,
    tombstone_seconds=0,
    in_flight=InFlight.REJECT,
    wait_seconds=10,
    on_unknown=OnUnknown.RETRY,
    keep=AGENT.keep,
    replay_status=AGENT.replay_status,
    marker=AGENT.marker,
    dialect=AGENT.dialect,
    forward_key=ForwardKey.SAME,
)
HOLD = replace(POLICY, on_unknown=OnUnknown.HOLD)
WAIT = replace(POLICY, in_flight=InFlight.WAIT)
TOMBSTONES = replace(POLICY, tombstone_seconds=100)

SAME, OTHER = b"\1" * 33, b"\2" * 33
TOKEN = b"t" * 16
ANSWER = Answer(201, b"Created", (), b"body")
LEASE = Lease(Claim(RecordId("k", b"s" * 32, "POST /"), SAME, TOKEN, 30, 60), 1)
RUNNING = Problem(Code.IDEMPOTENCY_IN_PROGRESS, retry_after=1)


@pytest.mark.parametrize(
    ("found", "policy", "step"),
    [
        pytest.param(LEASE, POLICY, Forward(LEASE), id="a claim that was won is forwarded"),
        pytest.param(Completed(TOKEN, SAME, 201, ANSWER), POLICY, Replay(ANSWER), id="a kept answer is replayed"),
        pytest.param(
            Completed(TOKEN, SAME, 201, None),
            POLICY,
            Refuse(Problem(Code.IDEMPOTENCY_RESPONSE_NOT_STORED, first_status=201)),
            id="an answer that was not kept is refused, with its status",
        ),
        pytest.param(Running(TOKEN, SAME, False, 20.0), POLICY, Refuse(RUNNING), id="a running write is refused"),
        pytest.param(
            Running(TOKEN, SAME, False, 20.0), WAIT, Wait(RUNNING), id="or waited for, where the policy says so"
        ),
        pytest.param(Running(TOKEN, SAME, True, -1.0), POLICY, TakeOver(TOKEN), id="a lapsed claim is taken over"),
        pytest.param(Running(TOKEN, SAME, True, -1.0), WAIT, TakeOver(TOKEN), id="a lapsed claim is not waited for"),
        pytest.param(
            Running(TOKEN, SAME, True, -1.0),
            HOLD,
            Refuse(Problem(Code.IDEMPOTENCY_OUTCOME_UNKNOWN)),
            id="a lapsed claim is held, where the policy says so",
        ),
        pytest.param(
            Unknown(TOKEN, SAME, False, 2.1),
            POLICY,
            Refuse(Problem(Code.IDEMPOTENCY_OUTCOME_UNKNOWN, retry_after=3, retry_allowed=True)),
            id="an unknown outcome may be retried when the lease has lapsed, in whole seconds",
        ),
        pytest.param(
            Unknown(TOKEN, SAME, False, 0.0),
            POLICY,
            Refuse(Problem(Code.IDEMPOTENCY_OUTCOME_UNKNOWN, retry_after=1, retry_allowed=True)),
            id="and never after zero seconds",
        ),
        pytest.param(
            Unknown(TOKEN, SAME, False, 2.1),
            HOLD,
            Refuse(Problem(Code.IDEMPOTENCY_OUTCOME_UNKNOWN)),
            id="an unknown outcome is held",
        ),
        pytest.param(
            Unknown(TOKEN, SAME, False, 2.1),
            replace(HOLD, in_flight=InFlight.WAIT),
            Refuse(Problem(Code.IDEMPOTENCY_OUTCOME_UNKNOWN)),
            id="nobody waits for an answer that was lost",
        ),
        pytest.param(Unknown(TOKEN, SAME, True, -1.0), POLICY, TakeOver(TOKEN), id="a lapsed unknown is taken over"),
        pytest.param(
            Unknown(TOKEN, SAME, True, -1.0),
            HOLD,
            Refuse(Problem(Code.IDEMPOTENCY_OUTCOME_UNKNOWN)),
            id="a lapsed unknown is held",
        ),
        pytest.param(Expired(TOKEN, 0.0), POLICY, TakeOver(TOKEN), id="an expired record is as good as gone"),
        pytest.param(Expired(TOKEN, 0.0), HOLD, TakeOver(TOKEN), id="even where unknown outcomes are held"),
        pytest.param(
            Expired(TOKEN, 99.9), TOMBSTONES, Refuse(Problem(Code.IDEMPOTENCY_KEY_EXPIRED)), id="a tombstone is refused"
        ),
        pytest.param(Expired(TOKEN, 100.0), TOMBSTONES, TakeOver(TOKEN), id="until its time is over"),
    ],
)
def test_the_same_request_gets_what_the_contract_says(found: Found, policy: Policy, step: Step) -> None:
    assert after_claim(found, SAME, policy) == step


@pytest.mark.parametrize("policy", [POLICY, HOLD, WAIT, TOMBSTONES], ids=["retry", "hold", "wait", "tombstones"])
@pytest.mark.parametrize(
    "found",
    [
        Running(TOKEN, SAME, False, 20.0),
        Running(TOKEN, SAME, True, -1.0),
        Unknown(TOKEN, SAME, False, 20.0),
        Unknown(TOKEN, SAME, True, -1.0),
        Completed(TOKEN, SAME, 201, ANSWER),
        Completed(TOKEN, SAME, 201, None),
    ],
)
def test_another_request_under_the_key_is_a_conflict_whatever_is_there(found: Found, policy: Policy) -> None:
    assert after_claim(found, OTHER, policy) == Refuse(Problem(Code.IDEMPOTENCY_CONFLICT))


prints = st.sampled_from([SAME, OTHER])
tokens = st.binary(min_size=16, max_size=16)
seconds = st.floats(-1e6, 1e6)
policies = st.builds(
    replace,
    st.just(POLICY),
    in_flight=st.sampled_from(InFlight),
    on_unknown=st.sampled_from(OnUnknown),
    tombstone_seconds=st.just(0.0) | st.floats(0, 1e6),
    keep=st.frozensets(st.integers(200, 599)),
    replay_status=st.sampled_from(ReplayStatus),
    forward_key=st.sampled_from(ForwardKey),
)
facts: st.SearchStrategy[Found] = st.one_of(
    st.just(LEASE),
    st.builds(Running, tokens, prints, st.booleans(), seconds),
    st.builds(Unknown, tokens, prints, st.booleans(), seconds),
    st.builds(Completed, tokens, prints, st.integers(200, 599), st.none() | st.just(ANSWER)),
    st.builds(Expired, tokens, st.floats(0, 1e6)),
)


@given(facts, prints, policies)
def test_no_fact_under_no_policy_leads_to_a_second_write(found: Found, fingerprint: bytes, policy: Policy) -> None:
    step = after_claim(found, fingerprint, policy)
    assert isinstance(step, Forward) == isinstance(found, Lease), "only a lease is forwarded"
    if isinstance(step, Replay):
        assert isinstance(found, Completed)
    if isinstance(found, Running | Unknown | Completed):
        if found.fingerprint != fingerprint:
            assert step == Refuse(Problem(Code.IDEMPOTENCY_CONFLICT))
        if policy.on_unknown is OnUnknown.HOLD or isinstance(found, Completed) or not found.lapsed:
            assert not isinstance(step, TakeOver)
    if isinstance(step, TakeOver):
        assert not isinstance(found, Lease)
        assert step.seen == found.token
    if isinstance(step, Refuse | Wait):
        problem = step.problem if isinstance(step, Refuse) else step.otherwise
        assert problem.retry_after is None or problem.retry_after >= 1
        assert problem.retriable or problem.retry_after is None, "no waiting time where there is nothing to retry"


@given(st.integers(200, 599), policies)
def test_every_answer_is_settled(status: int, policy: Policy) -> None:
    settlement = after_answer(status, policy)
    if status in (502, 504):
        assert settlement is Settlement.MARK_UNKNOWN
    elif status in policy.keep:
        assert settlement is Settlement.COMPLETE
    else:
        assert settlement is Settlement.RELEASE


def test_all_answers_from_200_to_599_are_settled() -> None:
    everything = replace(POLICY, keep=frozenset(range(200, 600)))
    unknown = {status for status in range(200, 600) if after_answer(status, everything) is Settlement.MARK_UNKNOWN}
    assert unknown == {502, 504}
    released = {status for status in range(200, 600) if after_answer(status, POLICY) is Settlement.RELEASE}
    assert released == set(range(400, 600)) - {502, 504}


@pytest.mark.parametrize("code", LOST)
def test_a_lost_answer_tells_the_first_caller_when_the_key_is_sent_again(code: Code) -> None:
    assert after_loss(code, LEASE, POLICY) == Problem(code, retry_after=30, retry_allowed=True)
    held = after_loss(code, LEASE, HOLD)
    assert held == Problem(code)
    assert not held.retriable
