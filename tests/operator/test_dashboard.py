"""The dashboard in a real browser: it loads, shows what just happened, finds, resolves, refuses, and runs no key."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import asyncpg
import pytest

from idemproxy.service import Service
from tests.conftest import StartProxy
from tests.operator.support import ask, several_states
from tests.support.orders import orders_api

try:
    from playwright.async_api import Page, async_playwright, expect
except ImportError:  # pragma: no cover - a machine without the browser's driver
    if os.environ.get("CI"):
        raise
    pytest.skip("playwright is not installed", allow_module_level=True)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    assert not os.environ.get("CI"), "in CI a browser must be there: apt-get install chromium"
    pytest.skip("no Chromium on this machine", allow_module_level=True)

UPSTREAM = "http://127.0.0.1:9"
TOKEN = "0123456789abcdef-token"
SECONDS = 30_000
"""For each thing awaited in the page, in milliseconds: a loaded machine draws slowly."""
EVIL = "<script>document.title='owned'</script><img/src=x/onerror=document.title='owned'>"


@asynccontextmanager
async def browser(service: Service, hash: str = "", *, scheme: str = "light") -> AsyncIterator[Page]:
    """The page, with every error that it reports collected and failed on."""
    faults: list[str] = []
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = await chromium.new_context(
            color_scheme="dark" if scheme == "dark" else "light", viewport={"width": 1280, "height": 900}
        )
        page = await context.new_page()
        page.set_default_timeout(SECONDS)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda line: faults.append(line.text) if "Content Security Policy" in line.text else None)
        await page.goto(f"http://127.0.0.1:{service.admin_port}/{hash}")
        yield page
        await chromium.close()
    assert faults == []


async def post(service: Service, key: str, item: str = "tea") -> int:
    url = f"http://127.0.0.1:{service.port}/orders"
    headers = {"Authorization": "Bearer ada", "Idempotency-Key": key}
    async with aiohttp.ClientSession() as client, client.post(url, json={"item": item}, headers=headers) as got:
        await got.read()
        return got.status


async def shot(page: Page, name: str) -> None:
    """Kept where IDEMPROXY_TEST_SCREENSHOTS says, to be looked at."""
    folder = os.environ.get("IDEMPROXY_TEST_SCREENSHOTS")
    if folder:
        await page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True, caret="initial")


async def test_it_shows_a_replay_that_just_happened(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url) as service, browser(service) as page:
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        await expect(page.locator("#health-text")).to_have_text("ready", timeout=SECONDS)
        assert (await post(service, "order-17"), await post(service, "order-17")) == (201, 200)
        events = page.get_by_role("table", name="Latest events")
        await expect(events.get_by_text("dedup hit")).to_be_visible(timeout=SECONDS)
        await expect(events.get_by_role("button", name="order-17").first).to_be_visible()
        replays = page.locator(".card", has_text="Replays")
        await expect(replays.locator("svg path.line")).to_have_count(1, timeout=SECONDS)
        await shot(page, "overview")


async def test_it_finds_a_record_and_tells_its_history(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        for number in range(60):
            await post(service, f"order-{number}", item=f"tea {number}")
        for _ in range(2):
            await post(service, "order-17", item="tea 17")
        await service.office.audit.flush()
        async with browser(service, "#records") as page:
            await expect(page.locator("#found")).to_have_text("50 and more records", timeout=SECONDS)
            await page.get_by_role("button", name="Show more").click()
            await expect(page.locator("#found")).to_have_text("60 records")
            await page.get_by_label("Key", exact=True).fill("order-17")
            await page.keyboard.press("Enter")
            await expect(page.locator("#found")).to_have_text("1 record")
            await shot(page, "records")
            await page.get_by_role("button", name="order-17").press("Enter")
            dialog = page.get_by_role("dialog", name="order-17")
            steps = dialog.get_by_role("listitem")
            await expect(steps.first).to_contain_text("claimed")
            await expect(steps.filter(has_text="replayed ×2")).to_have_count(1)
            assert "order" not in await dialog.locator("pre").all_inner_texts()
            await dialog.get_by_role("button", name="Show the stored answer").click()
            await expect(dialog.locator("pre")).to_contain_text('"order"')
            await shot(page, "record")
            await page.keyboard.press("Escape")
            await expect(dialog).to_be_hidden()


async def test_an_unknown_outcome_is_resolved_with_a_reason(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    await several_states(rows)
    async with proxy(UPSTREAM) as service, browser(service, "#records") as page:
        await page.get_by_label("State").select_option("unknown")
        await page.get_by_role("button", name="Search").click()
        await page.get_by_role("button", name="unknown-1").click()
        dialog = page.get_by_role("dialog", name="unknown-1")
        await dialog.get_by_label("Status").fill("201")
        await dialog.get_by_label("Body").fill('{"order":7}')
        await dialog.get_by_label("Who you are").fill("ada")
        await dialog.get_by_role("button", name="Change the record").click()
        assert await rows.fetchval("SELECT count(*) FROM idemproxy.changes") == 0, "a reason is required"
        await dialog.get_by_label("Reason").fill("found it in the ledger")
        await shot(page, "resolve")
        await dialog.get_by_role("button", name="Change the record").click()
        await expect(dialog.get_by_text("written to the audit trail")).to_be_visible(timeout=SECONDS)
        await expect(dialog.locator(".tag").first).to_have_text("completed")
        await page.keyboard.press("Escape")
        await page.get_by_role("link", name="Changes").click()
        await expect(page.get_by_role("table", name="Changes by operators")).to_contain_text("found it in the ledger")
        await shot(page, "changes")
    row = await rows.fetchrow("SELECT state, status, body FROM idemproxy.records WHERE key = 'unknown-1'")
    assert row is not None
    assert (row["state"], row["status"], row["body"]) == ("completed", 201, b'{"order":7}')


async def test_what_the_state_forbids_is_said_in_the_page(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    await several_states(rows)
    async with proxy(UPSTREAM) as service, browser(service, "#records") as page:
        await page.get_by_role("button", name="lost-just-now").click()
        dialog = page.get_by_role("dialog", name="lost-just-now")
        await dialog.get_by_label("What").select_option("release")
        await dialog.get_by_label("Who you are").fill("ada")
        await dialog.get_by_label("Reason").fill("in a hurry")
        await dialog.get_by_role("button", name="Change the record").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("may still be at work", timeout=SECONDS)


async def test_without_the_token_nothing_is_shown(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    await several_states(rows)
    async with proxy(UPSTREAM, admin_token=TOKEN) as service, browser(service, "#records") as page:
        dialog = page.get_by_role("dialog", name="Operator token")
        await expect(dialog).to_be_visible(timeout=SECONDS)
        assert "unknown-1" not in await page.content()
        await dialog.get_by_label("Token").fill("not-the-token")
        await page.keyboard.press("Enter")
        await expect(dialog.get_by_role("alert")).to_have_text("That is not the token.", timeout=SECONDS)
        assert "unknown-1" not in await page.content()
        await shot(page, "token")
        await dialog.get_by_label("Token").fill(TOKEN)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("button", name="unknown-1")).to_be_visible(timeout=SECONDS)
        assert TOKEN not in page.url
        assert await page.context.cookies() == []


async def test_a_key_that_is_a_script_is_text(proxy: StartProxy, rows: asyncpg.Connection) -> None:
    async with orders_api() as orders, proxy(orders.url) as service:
        assert await post(service, f'"{EVIL}"') == 201
        assert await post(service, "order-1") == 201
        await service.office.audit.flush()
        async with browser(service, "#records") as page:
            await page.get_by_role("button", name="<script>").click()
            await expect(page.locator("#record-title")).to_have_text(EVIL, timeout=SECONDS)
            assert await page.locator("main script, dialog script, main img, dialog img").count() == 0
            await page.keyboard.press("Escape")
            await page.get_by_role("link", name="Suspected duplicates").click()
            await expect(page.get_by_role("table", name="Suspected duplicates")).to_contain_text(EVIL, timeout=SECONDS)
            await shot(page, "duplicates")
            await page.get_by_role("link", name="Overview").click()
            await expect(page.get_by_role("table", name="Latest events")).to_contain_text(EVIL, timeout=SECONDS)
            assert "owned" not in await page.title()


async def test_dark_and_light_follow_the_system_and_can_be_switched(
    proxy: StartProxy, rows: asyncpg.Connection
) -> None:
    await several_states(rows)
    ground = "getComputedStyle(document.body).backgroundColor"
    async with proxy(UPSTREAM) as service:
        async with browser(service) as page:
            light = await page.evaluate(ground)
        async with browser(service, scheme="dark") as page:
            dark = await page.evaluate(ground)
            await expect(page.locator(".card").first).to_be_visible(timeout=SECONDS)
            await shot(page, "overview-dark")
            await page.get_by_role("link", name="Records").click()
            await page.get_by_role("button", name="unknown-1").click()
            await expect(page.get_by_role("dialog", name="unknown-1")).to_be_visible(timeout=SECONDS)
            await shot(page, "record-dark")
            await page.keyboard.press("Escape")
            await page.get_by_role("link", name="Contract").click()
            await expect(page.get_by_role("table")).to_be_visible(timeout=SECONDS)
            await shot(page, "contract-dark")
            await page.get_by_role("button", name="Switch between light and dark").click()
            assert await page.evaluate(ground) == light != dark


async def test_the_contract_is_a_table_with_its_lint_findings(proxy: StartProxy, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "examples" / "orders.yaml").read_text(encoding="utf-8")
    file = tmp_path / "openapi.yaml"
    file.write_text(text.replace("ttl_seconds: 86400", "ttl_seconds: 90"), encoding="utf-8")
    async with proxy(UPSTREAM, contract=str(file)) as service, browser(service, "#contract") as page:
        operations = page.get_by_role("table", name="Operations of the contract")
        row = operations.get_by_role("row").filter(has_text="POST /v1/orders").first
        await expect(row).to_contain_text("key idempotent", timeout=SECONDS)
        lint = page.get_by_role("table", name="Lint findings")
        await expect(lint).to_contain_text("ttl_seconds is 90")
        await shot(page, "contract")


async def test_in_shadow_mode_it_says_that_nothing_is_guarded_and_what_would_have_been(proxy: StartProxy) -> None:
    async with orders_api() as orders, proxy(orders.url, mode="shadow") as service:
        for item in ("tea", "tea", "milk"):
            assert await post(service, "order-1", item) == 201
        async with browser(service) as page:
            await expect(page.get_by_text("Nothing is guarded")).to_be_visible(timeout=SECONDS)
            replays = page.locator(".card", has_text="Would be: replay").locator(".figure")
            await expect(replays).to_contain_text("1", timeout=SECONDS)
            await expect(page.get_by_role("table", name="Latest events")).to_contain_text("(shadow)", timeout=SECONDS)
            await shot(page, "shadow")


async def test_it_is_usable_by_keyboard_and_by_a_screen_reader(proxy: StartProxy) -> None:
    async with proxy(UPSTREAM) as service, browser(service) as page:
        await expect(page.locator(".card").first).to_be_visible(timeout=SECONDS)
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.className") == "skip"
        for _ in range(2):
            await page.keyboard.press("Tab")
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.textContent") == "Suspected duplicates"
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Suspected duplicates")).to_be_visible(timeout=SECONDS)
        await expect(page.get_by_role("link", name="Suspected duplicates")).to_have_attribute("aria-current", "page")
        unnamed = await page.evaluate(
            "[...document.querySelectorAll('button, input, select, textarea')]"
            ".filter((e) => !(e.labels?.length || e.textContent.trim() || e.ariaLabel)).map((e) => e.outerHTML)"
        )
        assert unnamed == []
        charts = await page.evaluate(
            "[...document.querySelectorAll('svg.chart')].map((e) => e.getAttribute('aria-label'))"
        )
        assert charts
        assert all(charts)


async def test_the_page_is_whole_in_itself_and_its_policy_strict(proxy: StartProxy) -> None:
    async with proxy(UPSTREAM) as service:
        asked: list[str] = []
        async with browser(service) as page:
            page.on("request", lambda request: asked.append(request.url))
            await page.reload()
            await expect(page.locator(".card").first).to_be_visible(timeout=SECONDS)
        assert asked
        assert {url.split("/")[2] for url in asked} == {f"127.0.0.1:{service.admin_port}"}
        got = await ask(service, "/")
        policy = got.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        html = got.body.decode()
        assert not re.search(r"<script(?![^>]*\bsrc=)|\sstyle=|\son\w+=|https?://", html)
        for name in re.findall(r'(?:src|href)="(dashboard/[^"]+)"', html):
            assert (await ask(service, f"/{name}")).status == 200
