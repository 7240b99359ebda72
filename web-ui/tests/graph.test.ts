import { describe, expect, test } from 'vitest'
import type { Graph, GraphEdge, GraphNode } from '../src/api/types'
import { wholeView, zoomed } from '../src/pages/graph/drawing'
import { placeGraph } from '../src/pages/graph/layout'
import { around, components, without } from '../src/pages/graph/subgraph'

const node = (id: string): GraphNode => ({
  id,
  kind: id.startsWith('t') ? 'table' : 'pipeline',
  name: id,
  state: null,
  detail: null,
})
const edge = (from: string, to: string): GraphEdge => ({ from, to, kind: 'reads' })
const chain: Graph = {
  nodes: ['a', 't1', 'b', 't2', 'c', 'x'].map(node),
  edges: [edge('a', 't1'), edge('t1', 'b'), edge('b', 't2'), edge('t2', 'c')],
}
const ids = (graph: Graph) => graph.nodes.map(each => each.id)

describe('a part of the graph', () => {
  test('is what comes before and after', () =>
    expect(ids(around(chain, 'b', 9))).toEqual(['a', 't1', 'b', 't2', 'c']))
  test('ends after some steps', () => expect(ids(around(chain, 'b', 1))).toEqual(['t1', 'b', 't2']))
  test('a circle ends too', () =>
    expect(
      ids(around({ nodes: [node('a'), node('b')], edges: [edge('a', 'b'), edge('b', 'a')] }, 'a', 99)),
    ).toEqual(['a', 'b']))
  test('without tables stays joined', () => {
    const found = without(chain, ['table'])
    expect(ids(found)).toEqual(['a', 'b', 'c', 'x'])
    expect(found.edges.map(each => `${each.from}${each.to}`)).toEqual(['ab', 'bc'])
  })
  test('components are the largest first', () =>
    expect(components(chain).map(part => part.nodes.length)).toEqual([5, 1]))
})

describe('places', () => {
  test('what comes after stands to the right, and nothing overlaps', () => {
    const placed = placeGraph(chain)
    const at = (id: string) => placed.nodes[id] as { x: number; y: number }
    expect(at('a').x).toBeLessThan(at('t1').x)
    expect(at('b').x).toBeLessThan(at('c').x)
    const all = Object.values(placed.nodes)
    for (const one of all) {
      for (const other of all) {
        if (one !== other)
          expect(Math.abs(one.x - other.x) >= 196 || Math.abs(one.y - other.y) >= 40).toBe(true)
      }
    }
  })
  test('an empty graph has no size', () =>
    expect(placeGraph({ nodes: [], edges: [] })).toMatchObject({ width: 0, height: 0 }))
  test('a node that reads what it writes is drawn once', () =>
    expect(placeGraph({ nodes: [node('a')], edges: [edge('a', 'a')] }).edges).toEqual([]))
})

describe('the view', () => {
  test('shows all of it and never larger than it is', () => {
    expect(wholeView({ nodes: {}, edges: [], width: 5000, height: 100 }, 1000, 600).zoom).toBeLessThan(0.2)
    expect(wholeView({ nodes: {}, edges: [], width: 50, height: 100 }, 1000, 600).zoom).toBe(1)
  })
  test('a zoom keeps the point under the pointer', () => {
    const view = zoomed({ x: 10, y: 20, zoom: 1 }, 2, { x: 110, y: 120 })
    expect((110 - view.x) / view.zoom).toBe(100)
  })
})
