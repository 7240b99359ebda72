// Draws the placed graph on a canvas. Far away, a node is a patch in the colour of its state; near, a card.

import type { GraphNode } from '../../api/types'
import { resolveColor } from '../../components/colors'
import { statusText, type Tone, toneOf } from '../../components/status'
import { NODE_HEIGHT, NODE_WIDTH, type Placed, type Point } from './placed'

export interface View {
  x: number
  y: number
  zoom: number
}

export interface Palette {
  background: string
  surface: string
  line: string
  strong: string
  edge: string
  text: string
  muted: string
  accent: string
  tones: Record<Tone, string>
  font: string
}

const TONES: Tone[] = ['ok', 'bad', 'busy', 'wait', 'idle', 'held', 'stopped']
const NEAR = 0.42 // the zoom from which on text can be read
const KIND_LABELS: Record<string, string> = {
  pipeline: '',
  stream: 'stream',
  workflow: 'workflow',
  table: 'table',
}

export function readPalette(): Palette {
  return {
    background: resolveColor('--bg'),
    surface: resolveColor('--surface'),
    line: resolveColor('--line'),
    strong: resolveColor('--line-strong'),
    edge: resolveColor('--edge'),
    text: resolveColor('--text'),
    muted: resolveColor('--muted'),
    accent: resolveColor('--accent'),
    tones: Object.fromEntries(TONES.map(tone => [tone, resolveColor(`--${tone}-fill`)])) as Record<
      Tone,
      string
    >,
    font: getComputedStyle(document.documentElement).fontFamily,
  }
}

export interface Scene {
  placed: Placed
  nodes: Map<string, GraphNode>
  view: View
  selected: string | null
  hovered: string | null
  palette: Palette
}

export function draw(
  context: CanvasRenderingContext2D,
  scene: Scene,
  width: number,
  height: number,
  ratio: number,
): void {
  const { view, palette } = scene
  context.setTransform(ratio, 0, 0, ratio, 0, 0)
  context.fillStyle = palette.background
  context.fillRect(0, 0, width, height)
  context.setTransform(ratio * view.zoom, 0, 0, ratio * view.zoom, ratio * view.x, ratio * view.y)
  const seen = {
    left: -view.x / view.zoom - NODE_WIDTH,
    top: -view.y / view.zoom - NODE_HEIGHT,
    right: (width - view.x) / view.zoom + NODE_WIDTH,
    bottom: (height - view.y) / view.zoom + NODE_HEIGHT,
  }
  drawEdges(context, scene)
  for (const [id, at] of Object.entries(scene.placed.nodes)) {
    if (at.x < seen.left || at.x > seen.right || at.y < seen.top || at.y > seen.bottom) continue
    const node = scene.nodes.get(id)
    if (node) drawNode(context, scene, node, at)
  }
  if (view.zoom < NEAR) drawNearby(context, scene, width, ratio)
}

/** Far away, what the pointer is on or what is selected is drawn at its full size next to its place. */
function drawNearby(context: CanvasRenderingContext2D, scene: Scene, width: number, ratio: number): void {
  const id = scene.hovered ?? scene.selected
  const node = id ? scene.nodes.get(id) : undefined
  const at = id ? scene.placed.nodes[id] : undefined
  if (!node || !at) return
  const half = NODE_WIDTH / 2
  const x = Math.max(half + 4, Math.min(width - half - 4, at.x * scene.view.zoom + scene.view.x))
  const below = at.y * scene.view.zoom + scene.view.y + NODE_HEIGHT
  context.setTransform(ratio, 0, 0, ratio, 0, 0)
  drawNode(context, { ...scene, view: { x: 0, y: 0, zoom: 1 } }, node, { x, y: below })
}

function drawEdges(context: CanvasRenderingContext2D, scene: Scene): void {
  const { palette, view } = scene
  const marked = scene.hovered ?? scene.selected
  const plain = new Path2D()
  const bright = new Path2D()
  for (const edge of scene.placed.edges) {
    const path = marked && (edge.from === marked || edge.to === marked) ? bright : plain
    trace(path, edge.points)
    if (view.zoom > NEAR) arrow(path, edge.points)
  }
  context.lineWidth = Math.max(1, 0.7 / view.zoom)
  context.strokeStyle = palette.edge
  context.stroke(plain)
  context.lineWidth = Math.max(2, 1.6 / view.zoom)
  context.strokeStyle = palette.accent
  context.stroke(bright)
}

/** Curves that leave and enter a node level. */
function trace(path: Path2D, points: Point[]): void {
  let before = points[0]
  if (!before) return
  path.moveTo(before.x, before.y)
  for (const point of points.slice(1)) {
    const middle = (before.x + point.x) / 2
    path.bezierCurveTo(middle, before.y, middle, point.y, point.x, point.y)
    before = point
  }
}

function arrow(path: Path2D, points: Point[]): void {
  const last = points[points.length - 1]
  if (!last) return
  path.moveTo(last.x - 6, last.y - 3.5)
  path.lineTo(last.x, last.y)
  path.lineTo(last.x - 6, last.y + 3.5)
}

function drawNode(context: CanvasRenderingContext2D, scene: Scene, node: GraphNode, at: Point): void {
  const { palette, view } = scene
  const x = at.x - NODE_WIDTH / 2
  const y = at.y - NODE_HEIGHT / 2
  const tone = palette.tones[toneOf(node.state)]
  const isTable = node.kind === 'table'
  if (view.zoom < NEAR) {
    context.fillStyle = isTable ? palette.strong : tone
    context.fillRect(x, y, NODE_WIDTH, NODE_HEIGHT)
  } else {
    context.beginPath()
    context.roundRect(x, y, NODE_WIDTH, NODE_HEIGHT, isTable ? 2 : 7)
    context.fillStyle = palette.surface
    context.fill()
    context.strokeStyle = palette.strong
    context.lineWidth = 1
    if (isTable) context.setLineDash([4, 3])
    context.stroke()
    context.setLineDash([])
    if (!isTable) {
      context.beginPath()
      context.roundRect(x, y, 5, NODE_HEIGHT, [7, 0, 0, 7])
      context.fillStyle = tone
      context.fill()
    }
    label(context, palette, node, x, y)
  }
  if (node.id === scene.selected || node.id === scene.hovered) {
    context.beginPath()
    context.roundRect(x - 2, y - 2, NODE_WIDTH + 4, NODE_HEIGHT + 4, 8)
    context.strokeStyle = palette.accent
    context.lineWidth = Math.max(2, 1.5 / view.zoom)
    context.stroke()
  }
}

function label(
  context: CanvasRenderingContext2D,
  palette: Palette,
  node: GraphNode,
  x: number,
  y: number,
): void {
  const state = node.kind === 'table' ? '' : statusText(node.state)
  const below = [KIND_LABELS[node.kind], state].filter(Boolean).join(', ')
  context.textBaseline = 'middle'
  context.fillStyle = palette.text
  context.font = `600 12.5px ${palette.font}`
  context.fillText(fitted(context, node.name, NODE_WIDTH - 24), x + 14, y + (below ? 14 : 21))
  if (!below) return
  context.fillStyle = palette.muted
  context.font = `11px ${palette.font}`
  context.fillText(fitted(context, below, NODE_WIDTH - 24), x + 14, y + 29)
}

const widths = new Map<string, string>()

/** The text, or as much of it as fits. */
function fitted(context: CanvasRenderingContext2D, text: string, width: number): string {
  const key = `${context.font} ${text}`
  const known = widths.get(key)
  if (known !== undefined) return known
  let shown = text
  if (context.measureText(text).width > width) {
    let kept = text.length
    while (kept > 1 && context.measureText(`${text.slice(0, kept)}…`).width > width) kept -= 1
    shown = `${text.slice(0, kept)}…`
  }
  if (widths.size > 20_000) widths.clear()
  widths.set(key, shown)
  return shown
}

/** The node at a point of the canvas. */
export function nodeAt(placed: Placed, view: View, point: Point): string | null {
  const x = (point.x - view.x) / view.zoom
  const y = (point.y - view.y) / view.zoom
  for (const [id, at] of Object.entries(placed.nodes)) {
    if (Math.abs(at.x - x) <= NODE_WIDTH / 2 && Math.abs(at.y - y) <= NODE_HEIGHT / 2) return id
  }
  return null
}

/** The view in which all of it can be seen. */
export function wholeView(placed: Placed, width: number, height: number): View {
  const margin = 28
  const zoom = Math.min(
    1,
    (width - 2 * margin) / Math.max(1, placed.width),
    (height - 2 * margin) / Math.max(1, placed.height),
  )
  const most = Math.max(0.02, zoom)
  return { zoom: most, x: (width - placed.width * most) / 2, y: (height - placed.height * most) / 2 }
}

/** The view in which this node is in the middle and can be read. */
export function viewOn(at: Point, width: number, height: number): View {
  const zoom = 0.85
  return { zoom, x: width / 2 - at.x * zoom, y: height / 2 - at.y * zoom }
}

/** The view after a zoom around a point that stays where it is. */
export function zoomed(view: View, factor: number, at: Point): View {
  const zoom = Math.max(0.02, Math.min(2.5, view.zoom * factor))
  const change = zoom / view.zoom
  return { zoom, x: at.x - (at.x - view.x) * change, y: at.y - (at.y - view.y) * change }
}
