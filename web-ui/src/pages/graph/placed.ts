// A graph whose nodes have their places.

export const NODE_WIDTH = 196
export const NODE_HEIGHT = 40

export interface Point {
  x: number
  y: number
}

export interface Placed {
  nodes: Record<string, Point>
  edges: { from: string; to: string; kind: string; points: Point[] }[]
  width: number
  height: number
}
