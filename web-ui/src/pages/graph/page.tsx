// The graph of pipelines, streams, workflows and tables, with their live state.

import type { JSX } from 'preact'
import { useEffect, useMemo, useRef, useState } from 'preact/hooks'
import { useQuery } from '../../api/queries'
import type { Graph, GraphEdge, GraphNode, NodeKind } from '../../api/types'
import { Empty, ErrorPanel, Loading, WithData } from '../../components/feedback'
import { Segments } from '../../components/fields'
import { Page, Scrolling } from '../../components/layout'
import { useRowsInView } from '../../components/more'
import { Status, statusText } from '../../components/status'
import { navigate, pageOf, queryValue, setQuery } from '../../routing/router'
import { plural } from '../../text/numbers'
import { GraphCanvas } from './canvas'
import type { Placed } from './placed'
import { around, without } from './subgraph'

export function pageOfNode(node: GraphNode): string | null {
  if (node.kind === 'pipeline') return pageOf.pipeline(node.name)
  if (node.kind === 'stream') return pageOf.stream(node.name)
  return node.kind === 'workflow' ? `/workflows?q=${encodeURIComponent(node.name)}` : null
}

export function GraphPage(): JSX.Element {
  const query = useQuery<Graph>('/graph', { kinds: ['run', 'slot', 'hold'], every: 60_000 })
  return (
    <Page title="Graph" tabTitle="Graph">
      <WithData query={query} what="the graph">
        {graph =>
          graph.nodes.length === 0 ? (
            <div class="card">
              <Empty title="The module declares nothing yet" />
            </div>
          ) : (
            <GraphView graph={graph} />
          )
        }
      </WithData>
    </Page>
  )
}

function GraphView({ graph }: { graph: Graph }): JSX.Element {
  const focus = queryValue('focus')
  const hidden = queryValue('hide').split(',').filter(Boolean) as NodeKind[]
  const steps = Number(queryValue('steps')) || Number.POSITIVE_INFINITY
  const hasFocus = graph.nodes.some(node => node.id === focus)
  const shown = useMemo(() => {
    const kinds = hidden.filter(kind => !focus.startsWith(`${kind}:`))
    const part = hasFocus ? around(graph, focus, steps) : graph
    return without(part, kinds)
  }, [graph, focus, hasFocus, steps, hidden.join()])
  const select = (id: string | null) => setQuery({ node: id })
  const selected = queryValue('node') || (hasFocus ? focus : '')
  const node = shown.nodes.find(each => each.id === selected) ?? null
  const isList = queryValue('view') === 'list'
  return (
    <>
      <GraphFilters graph={graph} hidden={hidden} />
      {focus && !hasFocus && (
        <ErrorPanel
          error={{
            type: 'UnknownName',
            what: `the graph has no node ${focus}`,
            next: 'choose one by its name',
          }}
        />
      )}
      {isList ? (
        <NodeList graph={shown} />
      ) : (
        <div class={node ? 'graph-split' : ''}>
          <PlacedGraph
            graph={shown}
            focus={hasFocus ? focus : null}
            selected={node?.id ?? null}
            select={select}
          />
          {node && <NodeCard node={node} graph={graph} isFocus={node.id === focus} />}
        </div>
      )}
      <Tones graph={shown} />
      <p class="muted small">
        {plural(shown.nodes.length, 'node')}, {plural(shown.edges.length, 'edge')}
        {hasFocus && <> around {focus.split(':').slice(1).join(':')}</>}
      </p>
    </>
  )
}

/** What the colours mean, and how many nodes have each. */
function Tones({ graph }: { graph: Graph }): JSX.Element {
  const counts = new Map<string, number>()
  for (const node of graph.nodes) {
    if (node.kind !== 'table') counts.set(node.state ?? 'never', (counts.get(node.state ?? 'never') ?? 0) + 1)
  }
  return (
    <ul class="tones" aria-label="States">
      {[...counts].map(([state, number]) => (
        <li key={state}>
          <Status status={state} label={`${number} ${statusText(state)}`} />
        </li>
      ))}
    </ul>
  )
}

function GraphFilters({ graph, hidden }: { graph: Graph; hidden: NodeKind[] }): JSX.Element {
  const focus = queryValue('focus')
  const [typed, setTyped] = useState('')
  const named = (text: string) => graph.nodes.find(node => node.name === text || node.id === text)
  const choose = (text: string) => {
    setTyped(text)
    const node = named(text)
    if (!node) return
    setTyped('')
    setQuery({ focus: node.id, node: null }, { replace: false })
  }
  const toggle = (kind: NodeKind, isShown: boolean) => {
    const kinds = isShown ? hidden.filter(each => each !== kind) : [...hidden, kind]
    setQuery({ hide: kinds.join(',') || null })
  }
  const kinds = (['table', 'workflow', 'stream'] as NodeKind[]).filter(kind =>
    graph.nodes.some(node => node.kind === kind),
  )
  return (
    <div class="filters">
      <label class="wide">
        Show one with what is before and after it
        <input
          class="field"
          type="search"
          list="graph-names"
          data-search=""
          value={typed}
          placeholder="the name of a pipeline, stream or table"
          autocomplete="off"
          onInput={event => choose(event.currentTarget.value)}
        />
        <datalist id="graph-names">
          {graph.nodes.map(node => (
            <option key={node.id} value={node.name}>
              {node.kind}
            </option>
          ))}
        </datalist>
      </label>
      {focus && (
        <>
          <label>
            Steps
            <select
              class="field"
              value={queryValue('steps')}
              onChange={event => setQuery({ steps: event.currentTarget.value })}
            >
              <option value="">all</option>
              <option value="1">1</option>
              <option value="2">2</option>
              <option value="3">3</option>
            </select>
          </label>
          <button
            type="button"
            class="button"
            onClick={() => setQuery({ focus: null, steps: null, node: null }, { replace: false })}
          >
            Show everything
          </button>
        </>
      )}
      <fieldset class="row shown-kinds" aria-label="What is shown">
        {kinds.map(kind => (
          <label key={kind} class="check-line">
            <input
              type="checkbox"
              checked={!hidden.includes(kind)}
              onChange={event => toggle(kind, event.currentTarget.checked)}
            />
            {kind}s
          </label>
        ))}
      </fieldset>
      <Segments
        name="view"
        label="View"
        options={[
          ['', 'Drawing'],
          ['list', 'List'],
        ]}
      />
    </div>
  )
}

/** Asks the worker where the nodes stand; a change of states alone does not move them. */
function PlacedGraph({
  graph,
  focus,
  selected,
  select,
}: {
  graph: Graph
  focus: string | null
  selected: string | null
  select: (id: string | null) => void
}): JSX.Element {
  const worker = useRef<Worker | null>(null)
  const [placed, setPlaced] = useState<{ shape: string; placed: Placed } | null>(null)
  const shape = useMemo(() => shapeOf(graph), [graph])
  const wanted = useRef(0)
  const asked = useRef('')
  useEffect(() => {
    const made = new Worker(new URL('./layout.worker.ts', import.meta.url), { type: 'module' })
    worker.current = made
    made.onmessage = (message: MessageEvent<{ number: number; placed: Placed }>) => {
      if (message.data.number === wanted.current)
        setPlaced({ shape: asked.current, placed: message.data.placed })
    }
    return () => made.terminate()
  }, [])
  useEffect(() => {
    wanted.current += 1
    asked.current = shape
    worker.current?.postMessage({ number: wanted.current, graph })
  }, [shape])
  if (!placed) {
    return (
      <div class="graph-box">
        <Loading what="the graph" />
      </div>
    )
  }
  const open = (id: string) => {
    const node = graph.nodes.find(each => each.id === id)
    const to = node && pageOfNode(node)
    if (to) navigate(to)
  }
  return (
    <GraphCanvas
      focus={focus}
      graph={graph}
      placed={placed.placed}
      selected={selected}
      select={select}
      open={open}
    />
  )
}

function shapeOf(graph: Graph): string {
  return `${graph.nodes.map(node => node.id).join('\n')}\n\n${graph.edges.map(edge => `${edge.from} ${edge.to}`).join('\n')}`
}

function NodeCard({
  node,
  graph,
  isFocus,
}: {
  node: GraphNode
  graph: Graph
  isFocus: boolean
}): JSX.Element {
  const to = pageOfNode(node)
  const names = new Map(graph.nodes.map(each => [each.id, each]))
  const list = (edges: GraphEdge[], end: 'from' | 'to') =>
    edges.slice(0, 30).map(edge => {
      const other = names.get(edge[end])
      return (
        <li key={`${edge.kind} ${edge[end]}`}>
          <button type="button" class="link" onClick={() => setQuery({ node: edge[end] })}>
            {other?.name ?? edge[end]}
          </button>{' '}
          <span class="muted small">{other?.kind}</span>
        </li>
      )
    })
  const before = graph.edges.filter(edge => edge.to === node.id)
  const after = graph.edges.filter(edge => edge.from === node.id)
  return (
    <aside class="card graph-card" aria-label={`About ${node.name}`}>
      <div class="card-body stack">
        <div>
          <h2 class="break">{node.name}</h2>
          <div class="muted small">{node.kind}</div>
        </div>
        {node.kind !== 'table' && <Status status={node.state} />}
        {node.detail && <div class="small break">{node.detail}</div>}
        <div class="row">
          {to && (
            <a class="button narrow" href={to}>
              Open
            </a>
          )}
          {!isFocus && (
            <button
              type="button"
              class="button narrow"
              onClick={() => setQuery({ focus: node.id, node: null }, { replace: false })}
            >
              Show what is around it
            </button>
          )}
        </div>
        {before.length > 0 && (
          <div>
            <h3>Before it</h3>
            <ul>{list(before, 'from')}</ul>
          </div>
        )}
        {after.length > 0 && (
          <div>
            <h3>After it</h3>
            <ul>{list(after, 'to')}</ul>
          </div>
        )}
      </div>
    </aside>
  )
}

/** The same as text. */
function NodeList({ graph }: { graph: Graph }): JSX.Element {
  const names = useMemo(() => new Map(graph.nodes.map(node => [node.id, node.name])), [graph])
  const ends = useMemo(() => {
    const found = new Map<string, { before: string[]; after: string[] }>(
      graph.nodes.map(node => [node.id, { before: [], after: [] }]),
    )
    for (const edge of graph.edges) {
      found.get(edge.from)?.after.push(names.get(edge.to) ?? edge.to)
      found.get(edge.to)?.before.push(names.get(edge.from) ?? edge.from)
    }
    return found
  }, [graph, names])
  const [rows, end] = useRowsInView(graph.nodes, 'list')
  return (
    <div class="card">
      <Scrolling label="Nodes">
        <table class="grid">
          <thead>
            <tr>
              <th>Name</th>
              <th>Kind</th>
              <th>State</th>
              <th>Before it</th>
              <th>After it</th>
            </tr>
          </thead>
          <tbody>
            {rows.map(node => {
              const to = pageOfNode(node)
              return (
                <tr key={node.id}>
                  <td class="cell-main">{to ? <a href={to}>{node.name}</a> : node.name}</td>
                  <td>{node.kind}</td>
                  <td>{node.kind !== 'table' && <Status status={node.state} />}</td>
                  <td class="small break">{ends.get(node.id)?.before.join(', ')}</td>
                  <td class="small break">{ends.get(node.id)?.after.join(', ')}</td>
                </tr>
              )
            })}
          </tbody>
        </table>
      </Scrolling>
      {end}
    </div>
  )
}
