// The page's colours for drawings on a canvas, which knows no custom properties.

let probe: HTMLElement | undefined

export function resolveColor(name: string): string {
  if (!probe) {
    probe = document.createElement('span')
    probe.hidden = true
    document.body.append(probe)
  }
  probe.style.color = `var(${name})`
  return getComputedStyle(probe).color
}
