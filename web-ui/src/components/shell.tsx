// The frame around every page: navigation, who is here, how current the page is.

import type { ComponentChildren, JSX } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import { Tray } from '../actions/tray'
import { isLive, isStoreAway } from '../api/live'
import { useQuery } from '../api/queries'
import { me, refusal } from '../api/session'
import type { Me, Run, Page as ServerPage } from '../api/types'
import icon from '../assets/icon.svg'
import { isHelpShown } from '../keyboard'
import { path, setQuery } from '../routing/router'
import { nextTheme, themeChoice } from '../theme'
import { Help } from './help'
import { Icon, type IconName } from './icons'

const PLACES: [href: string, label: string, icon: IconName][] = [
  ['/', 'Pipelines', 'pipelines'],
  ['/graph', 'Graph', 'graph'],
  ['/runs', 'Runs', 'runs'],
  ['/streams', 'Streams', 'streams'],
  ['/dead-letters', 'Dead letters', 'letters'],
  ['/schedule', 'Schedule', 'schedule'],
  ['/workflows', 'Workflows', 'workflows'],
  ['/connections', 'Connections', 'connections'],
  ['/actions', 'Actions', 'actions'],
]

const THEME_ICONS = { auto: 'auto', light: 'sun', dark: 'moon' } as const

export function isAt(href: string, found: string): boolean {
  if (href === '/') return found === '/' || found === '/pipelines' || found.startsWith('/pipelines/')
  return found === href || found.startsWith(`${href}/`)
}

export function Shell({ children }: { children: ComponentChildren }): JSX.Element {
  const [isOpen, setOpen] = useState(false)
  const main = useRef<HTMLElement>(null)
  const shown = path.value
  const isFirst = useRef(true)
  useEffect(() => setQuery({ 'sign-in': null, token: null }), [])
  useEffect(() => {
    setOpen(false)
    if (!isFirst.current) main.current?.focus({ preventScroll: true }) // a reader hears of the new page
    isFirst.current = false
  }, [shown])
  return (
    <>
      <button type="button" class="skip" onClick={() => main.current?.focus()}>
        Skip to the page
      </button>
      <div class="shell">
        <header class="topbar">
          <button
            type="button"
            class="button quiet icon-only"
            aria-expanded={isOpen}
            onClick={() => setOpen(!isOpen)}
          >
            <Icon name="menu" />
            <span class="hidden-text">Menu</span>
          </button>
          <Brand />
          <LiveMark short />
        </header>
        {isOpen && (
          <button type="button" class="veil" aria-label="Close the menu" onClick={() => setOpen(false)} />
        )}
        <aside
          aria-label="Navigation"
          class={`side${isOpen ? ' is-open' : ''}`}
          onKeyDown={event => event.key === 'Escape' && setOpen(false)}
        >
          <Brand />
          <nav aria-label="Pages">
            <ul>
              {PLACES.map(([href, label, iconName]) => (
                <li key={href}>
                  <a href={href} aria-current={isAt(href, shown) ? 'page' : undefined}>
                    <Icon name={iconName} />
                    {label}
                    {href === '/runs' && <RunningCount />}
                  </a>
                </li>
              ))}
            </ul>
          </nav>
          <Foot />
        </aside>
        <main class="main" id="main" ref={main} tabIndex={-1}>
          <ModuleChanged />
          <ReadingOnly />
          {children}
        </main>
      </div>
      <Tray />
      <Help />
    </>
  )
}

function Brand(): JSX.Element {
  return (
    <a class="brand" href="/">
      <img src={icon} alt="" width={24} height={24} />
      ematix-flow
    </a>
  )
}

/** How many runs work now; the list itself says when there are more than it asked for. */
function RunningCount(): JSX.Element | null {
  const running = useQuery<ServerPage<Run>>('/runs?status=running&limit=50', { kinds: ['run'] }).data
  if (!running || running.items.length === 0) return null
  const many = `${running.items.length}${running.next ? '+' : ''}`
  return (
    <span class="count busy">
      {many}
      <span class="hidden-text"> running</span>
    </span>
  )
}

function LiveMark({ short = false }: { short?: boolean }): JSX.Element {
  const live = isLive.value && !isStoreAway.value
  const text = live ? 'live' : isStoreAway.value ? 'run log away' : 'polling'
  const title = live ? 'Changes appear at once.' : 'No live events now: the page asks every few seconds.'
  return (
    <span class={`live${live ? '' : ' polling'}${short ? ' small' : ''}`} title={title}>
      {text}
    </span>
  )
}

function Foot(): JSX.Element {
  const found = me.value
  const choice = themeChoice.value
  return (
    <div class="foot">
      <div class="foot-tools">
        <LiveMark />
        <button
          type="button"
          class="button quiet narrow icon-only"
          title={`Colours: ${choice === 'auto' ? 'as the system' : choice}`}
          onClick={nextTheme}
        >
          <Icon name={THEME_ICONS[choice]} />
          <span class="hidden-text">Colours: {choice === 'auto' ? 'as the system' : choice}. Change</span>
        </button>
        <button
          type="button"
          class="button quiet narrow icon-only"
          title="Keys (?)"
          onClick={() => {
            isHelpShown.value = true
          }}
        >
          <kbd>?</kbd>
          <span class="hidden-text"> Show the keys</span>
        </button>
      </div>
      {found && (
        <dl>
          <FootFact name="Module" text={found.module ?? 'none'} />
          <FootFact name="Run log" text={found.run_log} />
          <FootFact name="Scheduler" text={found.scheduler ? 'runs in this process' : 'runs elsewhere'} />
          <FootFact name="Version" text={found.version} />
        </dl>
      )}
    </div>
  )
}

/** The page shows what the server read when it started; runs read the module again. */
function ModuleChanged(): JSX.Element | null {
  const files = useQuery<Me>('/me', { kinds: [], every: 10_000 }).data?.module_changed ?? []
  if (files.length === 0) return null
  return (
    <div class="note wait module-changed" role="status">
      <strong>
        {files.join(', ')} {files.length === 1 ? 'has' : 'have'} changed since flow web started:
      </strong>{' '}
      start it again to see the change. Runs that start now already use it.
    </div>
  )
}

/** Says once why every button of this page is disabled. */
function ReadingOnly(): JSX.Element | null {
  const refused = refusal()
  if (!refused) return null
  return (
    <div class="reading-only">
      <strong>Reading only.</strong> {refused}
    </div>
  )
}

function FootFact({ name, text }: { name: string; text: string }): JSX.Element {
  return (
    <div>
      <dt>{name}</dt>
      <dd title={text}>{text}</dd>
    </div>
  )
}
