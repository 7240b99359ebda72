// Parts of the graph: what is around one node, and the graph without its tables.

import type { Graph, GraphEdge, GraphNode, NodeKind } from '../../api/types'

const MOST_JOINED = 200 // pairs that one hidden table may join

/** The node with everything before and after it, at most so many steps away. */
export function around(graph: Graph, id: string, steps: number): Graph {
  const before = neighbours(graph.edges, 'to', 'from')
  const after = neighbours(graph.edges, 'from', 'to')
  const kept = new Set([...reach(id, before, steps), ...reach(id, after, steps)])
  return only(graph, node => kept.has(node.id))
}

function neighbours(edges: GraphEdge[], key: 'from' | 'to', value: 'from' | 'to'): Map<string, string[]> {
  const found = new Map<string, string[]>()
  for (const edge of edges) {
    const list = found.get(edge[key])
    if (list) list.push(edge[value])
    else found.set(edge[key], [edge[value]])
  }
  return found
}

function reach(id: string, next: Map<string, string[]>, steps: number): Set<string> {
  const seen = new Set([id])
  let edge = [id]
  for (let step = 0; step < steps && edge.length > 0; step += 1) {
    const further: string[] = []
    for (const each of edge) {
      for (const other of next.get(each) ?? []) {
        if (seen.has(other)) continue
        seen.add(other)
        further.push(other)
      }
    }
    edge = further
  }
  return seen
}

export function only(graph: Graph, keep: (node: GraphNode) => boolean): Graph {
  const nodes = graph.nodes.filter(keep)
  const ids = new Set(nodes.map(node => node.id))
  return { nodes, edges: graph.edges.filter(edge => ids.has(edge.from) && ids.has(edge.to)) }
}

/** Without nodes of these kinds; what a hidden table joined stays joined. */
export function without(graph: Graph, kinds: NodeKind[]): Graph {
  if (kinds.length === 0) return graph
  const left = only(graph, node => !kinds.includes(node.kind))
  if (!kinds.includes('table')) return left
  const known = new Set(left.edges.map(edge => `${edge.from} ${edge.to}`))
  const ids = new Set(left.nodes.map(node => node.id))
  const joined: GraphEdge[] = []
  const into = neighbours(graph.edges, 'to', 'from')
  const outOf = neighbours(graph.edges, 'from', 'to')
  for (const table of graph.nodes) {
    if (table.kind !== 'table') continue
    const writers = (into.get(table.id) ?? []).filter(id => ids.has(id))
    const readers = (outOf.get(table.id) ?? []).filter(id => ids.has(id))
    if (writers.length * readers.length > MOST_JOINED) continue
    for (const from of writers) {
      for (const to of readers) {
        if (from === to || known.has(`${from} ${to}`) || known.has(`${to} ${from}`)) continue
        known.add(`${from} ${to}`)
        joined.push({ from, to, kind: 'reads' })
      }
    }
  }
  return { nodes: left.nodes, edges: [...left.edges, ...joined] }
}

/** The parts that no edge joins, the largest first. */
export function components(graph: Graph): Graph[] {
  const root = new Map<string, string>(graph.nodes.map(node => [node.id, node.id]))
  const find = (id: string): string => {
    let at = id
    while (root.get(at) !== at) {
      const up = root.get(root.get(at) as string) as string
      root.set(at, up)
      at = up
    }
    return at
  }
  for (const edge of graph.edges)
    if (root.has(edge.from) && root.has(edge.to)) root.set(find(edge.from), find(edge.to))
  const parts = new Map<string, Graph>()
  for (const node of graph.nodes) {
    const key = find(node.id)
    const part = parts.get(key)
    if (part) part.nodes.push(node)
    else parts.set(key, { nodes: [node], edges: [] })
  }
  for (const edge of graph.edges)
    if (root.has(edge.from) && root.has(edge.to)) parts.get(find(edge.from))?.edges.push(edge)
  return [...parts.values()].sort((one, other) => other.nodes.length - one.nodes.length)
}
