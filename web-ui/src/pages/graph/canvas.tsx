// The graph on a canvas: drag to move, wheel or two fingers to zoom, click to select. Keys do the same.

import type { JSX } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import type { Graph } from '../../api/types'
import { Icon } from '../../components/icons'
import { theme } from '../../theme'
import { draw, nodeAt, readPalette, type Scene, type View, viewOn, wholeView, zoomed } from './drawing'
import type { Placed, Point } from './placed'

const STEP = 60
const CLICK_REACH = 4

export function GraphCanvas({
  graph,
  placed,
  focus,
  selected,
  select,
  open,
}: {
  graph: Graph
  placed: Placed
  focus: string | null
  selected: string | null
  select: (id: string | null) => void
  open: (id: string) => void
}): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null)
  const scene = useRef<Scene | null>(null)
  const frame = useRef(0)
  const [isGrabbed, setGrabbed] = useState(false)
  const shade = theme.value

  const redraw = () => {
    cancelAnimationFrame(frame.current)
    frame.current = requestAnimationFrame(() => {
      const element = canvas.current
      const context = element?.getContext('2d')
      if (!element || !context || !scene.current) return
      const ratio = window.devicePixelRatio || 1
      const { clientWidth: width, clientHeight: height } = element
      if (element.width !== Math.round(width * ratio) || element.height !== Math.round(height * ratio)) {
        element.width = Math.round(width * ratio)
        element.height = Math.round(height * ratio)
      }
      draw(context, scene.current, width, height, ratio)
    })
  }
  const look = (view: View) => {
    if (scene.current) scene.current.view = view
    redraw()
  }
  /** All of it; around one node only when it could be read. */
  const firstView = (element: HTMLElement): View => {
    const whole = wholeView(placed, element.clientWidth, element.clientHeight)
    const at = focus ? placed.nodes[focus] : undefined
    return at && whole.zoom < 0.6 ? viewOn(at, element.clientWidth, element.clientHeight) : whole
  }
  const showAll = () => {
    const element = canvas.current
    if (element) look(wholeView(placed, element.clientWidth, element.clientHeight))
  }
  const zoom = (factor: number, at?: Point) => {
    const element = canvas.current
    if (!element || !scene.current) return
    look(
      zoomed(scene.current.view, factor, at ?? { x: element.clientWidth / 2, y: element.clientHeight / 2 }),
    )
  }

  useEffect(() => {
    const element = canvas.current
    if (!element) return
    const nodes = new Map(graph.nodes.map(node => [node.id, node]))
    const before = scene.current
    const isSamePlace = before?.placed === placed
    const view = isSamePlace ? before.view : firstView(element)
    scene.current = {
      placed,
      nodes,
      view,
      selected,
      hovered: before?.hovered ?? null,
      palette: readPalette(),
    }
    redraw()
  }, [graph, placed, selected, shade])

  useEffect(() => {
    const element = canvas.current
    if (!element) return
    const observer = new ResizeObserver(redraw)
    observer.observe(element)
    const onWheel = (event: WheelEvent) => {
      event.preventDefault()
      zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015)), { x: event.offsetX, y: event.offsetY })
    }
    element.addEventListener('wheel', onWheel, { passive: false })
    return () => {
      observer.disconnect()
      element.removeEventListener('wheel', onWheel)
    }
  }, [])

  const fingers = useRef(new Map<number, Point>())
  const pressed = useRef<Point | null>(null)
  const onPointerDown = (event: PointerEvent) => {
    canvas.current?.setPointerCapture(event.pointerId)
    fingers.current.set(event.pointerId, { x: event.offsetX, y: event.offsetY })
    pressed.current = fingers.current.size === 1 ? { x: event.offsetX, y: event.offsetY } : null
    setGrabbed(true)
  }
  const onPointerMove = (event: PointerEvent) => {
    const current = scene.current
    if (!current) return
    const at = { x: event.offsetX, y: event.offsetY }
    const before = fingers.current.get(event.pointerId)
    if (!before) {
      const hovered = nodeAt(placed, current.view, at)
      if (hovered !== current.hovered) {
        current.hovered = hovered
        redraw()
      }
      return
    }
    if (fingers.current.size === 2) {
      const other = [...fingers.current].find(([id]) => id !== event.pointerId)?.[1] as Point
      const spread = (one: Point) => Math.max(1, Math.hypot(one.x - other.x, one.y - other.y))
      fingers.current.set(event.pointerId, at)
      zoom(spread(at) / spread(before), other)
      return
    }
    fingers.current.set(event.pointerId, at)
    look({ ...current.view, x: current.view.x + at.x - before.x, y: current.view.y + at.y - before.y })
  }
  const onPointerUp = (event: PointerEvent) => {
    const start = pressed.current
    fingers.current.delete(event.pointerId)
    setGrabbed(fingers.current.size > 0)
    if (!start || !scene.current) return
    if (Math.hypot(event.offsetX - start.x, event.offsetY - start.y) > CLICK_REACH) return
    select(nodeAt(placed, scene.current.view, start))
  }
  const onKeyDown = (event: KeyboardEvent) => {
    const moves: Record<string, [number, number]> = {
      ArrowLeft: [STEP, 0],
      ArrowRight: [-STEP, 0],
      ArrowUp: [0, STEP],
      ArrowDown: [0, -STEP],
    }
    const move = moves[event.key]
    const view = scene.current?.view
    if (move && view) look({ ...view, x: view.x + move[0], y: view.y + move[1] })
    else if (event.key === '+' || event.key === '=') zoom(1.3)
    else if (event.key === '-') zoom(1 / 1.3)
    else if (event.key === '0') showAll()
    else if (event.key === 'Enter' && selected) open(selected)
    else if (event.key === 'Escape') select(null)
    else return
    event.preventDefault()
  }

  return (
    <div class="graph-box">
      <div
        class="graph-drawing"
        role="application"
        aria-label="Graph. Arrow keys move it, plus and minus zoom, 0 shows all of it. The list view holds the same as text."
        // biome-ignore lint/a11y/noNoninteractiveTabindex: keys move and zoom it
        tabIndex={0}
        onKeyDown={onKeyDown}
      >
        <canvas
          ref={canvas}
          class={isGrabbed ? 'is-grabbed' : ''}
          onPointerDown={onPointerDown}
          onPointerMove={onPointerMove}
          onPointerUp={onPointerUp}
          onPointerCancel={onPointerUp}
          onDblClick={() => selected && open(selected)}
        />
      </div>
      <div class="graph-tools">
        <ZoomButton icon="plus" label="Zoom in" act={() => zoom(1.3)} />
        <ZoomButton icon="minus" label="Zoom out" act={() => zoom(1 / 1.3)} />
        <ZoomButton icon="fit" label="Show all" act={showAll} />
      </div>
    </div>
  )
}

function ZoomButton({
  icon,
  label,
  act,
}: {
  icon: 'plus' | 'minus' | 'fit'
  label: string
  act: () => void
}): JSX.Element {
  return (
    <button type="button" class="button icon-only" title={label} onClick={act}>
      <Icon name={icon} />
      <span class="hidden-text">{label}</span>
    </button>
  )
}
