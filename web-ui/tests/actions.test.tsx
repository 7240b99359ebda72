import { render } from 'preact'
import { act } from 'preact/test-utils'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { ActionButton } from '../src/actions/action_button'
import { requested } from '../src/actions/requests'
import { SHOWN_FOR, Tray } from '../src/actions/tray'
import { me } from '../src/api/session'
import type { Action } from '../src/api/types'
import { ErrorPanel } from '../src/components/feedback'

const WHO = { read_only: false, version: '1', module: null, run_log: '', scheduler: false, zone: 'UTC' }

beforeEach(() => {
  me.value = { ...WHO, role: 'operator' }
  requested.value = []
  HTMLDialogElement.prototype.showModal = function show() {
    this.open = true
  }
})
afterEach(() => {
  act(() => render(null, place))
  vi.unstubAllGlobals()
})

let place = document.createElement('div')

function drawn(element: preact.ComponentChildren): HTMLElement {
  place = document.createElement('div')
  document.body.replaceChildren(place)
  act(() => render(element, place))
  return place
}

function clickOn(place: HTMLElement, text: string, nth = 0): void {
  const found = [...place.querySelectorAll('button')].filter(button => button.textContent === text)
  act(() => found[nth]?.click())
}

const button = (
  <ActionButton kind="run" subjects={['orders']} label="Run" consequence="It runs." confirmLabel="Run now" />
)

describe('the button of an action', () => {
  test('asks first and then requests', async () => {
    const fetched = vi.fn(
      async () =>
        new Response(
          JSON.stringify({
            action_id: 'x',
            status: 'done',
            requested_at: '2026-10-12T14:00:00Z',
            run_ids: [],
          }),
        ),
    )
    vi.stubGlobal('fetch', fetched)
    const place = drawn(button)
    clickOn(place, 'Run')
    expect(fetched).not.toHaveBeenCalled()
    clickOn(place, 'Run now')
    await vi.waitFor(() => expect(requested.value[0]?.action?.status).toBe('done'))
    const [path, options] = fetched.mock.calls[0] as unknown as [string, RequestInit]
    expect(path).toBe('/api/v1/actions')
    expect(JSON.parse(String(options.body))).toEqual({ kind: 'run', subject: 'orders', arguments: {} })
    expect(new Headers(options.headers).get('X-Requested-With')).toBe('ematix-flow')
  })

  test.each([
    [201, false],
    [200, true],
  ])('tells with status %i whether somebody had asked already: %s', async (status, wasKnown) => {
    const known = { action_id: 'x', status: 'done', requested_at: '', run_ids: [] }
    vi.stubGlobal('fetch', async () => new Response(JSON.stringify(known), { status }))
    const place = drawn(button)
    clickOn(place, 'Run')
    clickOn(place, 'Run now')
    await vi.waitFor(() => expect(requested.value[0]?.action?.status).toBe('done'))
    expect(requested.value[0]?.wasKnown).toBe(wasKnown)
  })

  test('is disabled for a reader and says why', () => {
    me.value = { ...WHO, role: 'reader' }
    const place = drawn(button)
    expect(place.querySelector('button')?.getAttribute('aria-disabled')).toBe('true')
    expect(place.textContent).toContain('it may look and not change')
    clickOn(place, 'Run')
    expect(place.querySelector('dialog')).toBeNull()
  })

  test('says why the server does not allow it', () => {
    const place = drawn(
      <ActionButton
        kind="stop"
        subjects={['x']}
        consequence=""
        permission={{ ok: false, why: 'it has ended' }}
        reasonShown
      />,
    )
    expect(place.textContent).toContain('it has ended')
  })

  test('keeps the parts of a refusal', async () => {
    vi.stubGlobal(
      'fetch',
      async () =>
        new Response(
          JSON.stringify({ error: { type: 'UsageError', what: 'it is running', next: 'flow stop 1' } }),
          { status: 409 },
        ),
    )
    const place = drawn(button)
    clickOn(place, 'Run')
    clickOn(place, 'Run now')
    await vi.waitFor(() => expect(requested.value[0]?.error?.what).toBe('it is running'))
  })
})

test('an error is text even when it holds markup', () => {
  const place = drawn(
    <ErrorPanel error={{ type: 'E', what: '<img src=x onerror=alert(1)>', next: '<b>x</b>' }} />,
  )
  expect(place.querySelector('img, b')).toBeNull()
  expect(place.textContent).toContain('<img src=x')
})

test('an action that nobody takes says why it waits', () => {
  const action = { action_id: 'x', status: 'waiting', outcome: null, why: 'no running scheduler declares it' }
  requested.value = [
    { key: 'x', kind: 'run', subject: 'orders', action: action as Action, error: null, wasKnown: false },
  ]
  expect(drawn(<Tray />).textContent).toContain('no running scheduler declares it')
})

describe('what was requested', () => {
  beforeEach(() => {
    vi.useFakeTimers()
  })
  afterEach(() => {
    vi.useRealTimers()
  })
  const show = (...statuses: string[]) => {
    requested.value = statuses.map(status => ({
      key: status,
      kind: 'run',
      subject: 'orders',
      action: { action_id: status, status, outcome: `it is ${status}` } as Action,
      error: null,
      wasKnown: false,
    }))
    return drawn(<Tray />)
  }
  const wait = (milliseconds: number) => act(() => void vi.advanceTimersByTime(milliseconds))

  test('goes by itself when it has ended well, and stays when it has not', () => {
    const place = show('done', 'failed', 'refused', 'waiting', 'claimed')
    wait(SHOWN_FOR - 1)
    expect(place.textContent).toContain('it is done')
    wait(1)
    expect(requested.value.map(each => each.key)).toEqual(['failed', 'refused', 'waiting', 'claimed'])
    expect(place.textContent).not.toContain('it is done')
    wait(10 * SHOWN_FOR)
    expect(requested.value).toHaveLength(4)
    expect(place.querySelector('section')?.getAttribute('aria-live')).toBe('polite')
  })

  test('counts its time from the end of the action', () => {
    show('claimed')
    wait(SHOWN_FOR)
    const [item] = requested.value
    act(() => {
      if (item) requested.value = [{ ...item, action: { ...item.action, status: 'done' } as Action }]
    })
    wait(SHOWN_FOR - 1)
    expect(requested.value).toHaveLength(1)
    wait(1)
    expect(requested.value).toHaveLength(0)
  })

  test.each([
    ['pointerenter', 'pointerleave'],
    ['focusin', 'focusout'],
  ])('stays from %s to %s', (begins, ends) => {
    const item = show('done').querySelector('.tray-item')
    act(() => void item?.dispatchEvent(new Event(begins)))
    wait(5 * SHOWN_FOR)
    expect(requested.value).toHaveLength(1)
    act(() => void item?.dispatchEvent(new Event(ends)))
    wait(SHOWN_FOR)
    expect(requested.value).toHaveLength(0)
  })
})
