// Where each node stands: layers from left to right by dagre, one component after the other, packed on shelves.

import { graphlib, layout as layered } from '@dagrejs/dagre'
import type { Graph, GraphEdge } from '../../api/types'
import { NODE_HEIGHT, NODE_WIDTH, type Placed, type Point } from './placed'
import { components } from './subgraph'

const GAP = 36
const BUSY = 250 // nodes from which on a quicker ranking is used

export function placeGraph(graph: Graph): Placed {
  const parts = components(graph)
  const joined = parts.filter(part => part.nodes.length > 1).map(placePart)
  const single = placeGrid(
    parts.filter(part => part.nodes.length === 1).flatMap(part => part.nodes.map(node => node.id)),
  )
  return pack(single ? [...joined, single] : joined)
}

function placePart(part: Graph): Placed {
  const made = new graphlib.Graph({ multigraph: true })
  made.setGraph({
    rankdir: 'LR',
    nodesep: 12,
    ranksep: 52,
    edgesep: 8,
    marginx: 0,
    marginy: 0,
    ranker: part.nodes.length > BUSY ? 'longest-path' : 'network-simplex',
  })
  made.setDefaultEdgeLabel(() => ({}))
  for (const node of part.nodes) made.setNode(node.id, { width: NODE_WIDTH, height: NODE_HEIGHT })
  for (const edge of part.edges) if (edge.from !== edge.to) made.setEdge(edge.from, edge.to, {}, edge.kind)
  layered(made)
  const size = made.graph()
  const line = (edge: GraphEdge): Point[] => {
    const from = made.node(edge.from)
    const to = made.node(edge.to)
    const bends = (made.edge(edge.from, edge.to, edge.kind).points ?? []).slice(1, -1)
    const inside = bends.filter(({ x }) => x > from.x + NODE_WIDTH / 2 + 8 && x < to.x - NODE_WIDTH / 2 - 8)
    return [{ x: from.x + NODE_WIDTH / 2, y: from.y }, ...inside, { x: to.x - NODE_WIDTH / 2, y: to.y }]
  }
  return {
    nodes: Object.fromEntries(part.nodes.map(({ id }) => [id, { x: made.node(id).x, y: made.node(id).y }])),
    edges: part.edges.filter(edge => edge.from !== edge.to).map(edge => ({ ...edge, points: line(edge) })),
    width: size.width ?? 0,
    height: size.height ?? 0,
  }
}

/** Nodes without an edge stand in a grid. */
function placeGrid(ids: string[]): Placed | null {
  if (ids.length === 0) return null
  const columns = Math.max(1, Math.round(Math.sqrt(ids.length / 3)))
  const wide = NODE_WIDTH + 24
  const high = NODE_HEIGHT + 16
  const nodes = Object.fromEntries(
    ids.map((id, index) => [
      id,
      {
        x: (index % columns) * wide + NODE_WIDTH / 2,
        y: Math.floor(index / columns) * high + NODE_HEIGHT / 2,
      },
    ]),
  )
  const rows = Math.ceil(ids.length / columns)
  return { nodes, edges: [], width: columns * wide - 24, height: rows * high - 16 }
}

const SCREEN = 1.7 // width by height

/** Shelves that fill about the shape of a screen: of some widths, the one that can be shown largest. */
function pack(parts: Placed[]): Placed {
  const widest = Math.max(0, ...parts.map(part => part.width))
  const area = parts.reduce((sum, part) => sum + (part.width + GAP) * (part.height + GAP), 0)
  const tried = [1, 1.3, 1.7, 2.2, 3, 4].map(factor =>
    shelve(parts, Math.max(widest, factor * Math.sqrt(area))),
  )
  const scale = (placed: Placed) => Math.max(placed.width, SCREEN * placed.height)
  return tried.reduce((best, each) => (scale(each) < scale(best) ? each : best))
}

/** From the highest part to the lowest; on a shelf, lower parts stand below each other. */
function shelve(parts: Placed[], most: number): Placed {
  const whole: Placed = { nodes: {}, edges: [], width: 0, height: 0 }
  let shelf = { y: 0, height: 0 }
  let column = { x: 0, width: 0, filled: 0 }
  for (const part of [...parts].sort((one, other) => other.height - one.height)) {
    const isFull = column.filled + part.height > shelf.height
    if (isFull && column.width > 0) column = { x: column.x + column.width + GAP, width: 0, filled: 0 }
    if (column.x + part.width > most && (column.x > 0 || column.filled > 0)) {
      shelf = { y: shelf.y + shelf.height + GAP, height: 0 }
      column = { x: 0, width: 0, filled: 0 }
    }
    const [left, top] = [column.x, shelf.y + column.filled]
    const move = (point: Point): Point => ({ x: point.x + left, y: point.y + top })
    for (const [id, point] of Object.entries(part.nodes)) whole.nodes[id] = move(point)
    for (const edge of part.edges) whole.edges.push({ ...edge, points: edge.points.map(move) })
    column = {
      ...column,
      width: Math.max(column.width, part.width),
      filled: column.filled + part.height + GAP,
    }
    shelf.height = Math.max(shelf.height, part.height)
    whole.width = Math.max(whole.width, left + part.width)
    whole.height = Math.max(whole.height, top + part.height)
  }
  return whole
}
